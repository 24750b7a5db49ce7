"""What a task's image adds to a bare sandbox."""

import pytest

from fpenv.errors import SandboxError
from fpenv.sandbox.image_layer import ImageLayer
from fpenv.sandbox.local import LocalBackend
from fpenv.sandbox.runtime import provide
from fpenv.sandbox.sandbox import SandboxSpec
from fpenv.testing.fake_sandbox import FakeBackend, finished

LAYER = ImageLayer(
    files={"/app/bin/tool": b"echo tool", "/opt/data/x/y.txt": b"y", "/srv/a/b": b"b"},
    executables=frozenset({"/app/bin/tool"}),
    folders=("/root/out", "/wares/empty"),
    env={"A": "layer", "B": "layer"},
    workdir="/app",
)


def test_a_sandbox_has_the_layers_files_folders_variables_and_workdir() -> None:
    spec = SandboxSpec(runtime=provide("").path, env={"B": "spec"})
    script = (
        "pwd; echo $A $B; test -x bin/tool; cat /opt/data/x/y.txt /srv/a/b; ls -A /wares /wares/empty /root; cd /; pwd"
    )
    with LAYER.start(LocalBackend(), spec) as box:
        done = box.exec(("bash", "-ec", script), timeout_s=10)
        elsewhere = box.exec(("pwd",), timeout_s=10, cwd="/root")
        written = box.exec(("bash", "-c", "touch /wares/empty/x /app/x && ! touch /opt/data/x"), timeout_s=10)
    assert done.stdout.decode().split() == [
        "/app",
        "layer",
        "spec",
        "yb/root:",
        "out",
        "/wares:",
        "empty",
        "/wares/empty:",
        "/",
    ]
    assert elsewhere.stdout == b"/root\n"
    assert written.exit_code == 0


def test_an_empty_layer_changes_nothing() -> None:
    backend = FakeBackend()
    spec = SandboxSpec(files={"/root/a": b""}, env={"A": "b"})
    assert ImageLayer().start(backend, spec) is backend.started[0]
    assert backend.started[0].spec == spec
    assert backend.started[0].calls == []


def test_a_layer_that_cannot_be_laid_out_leaves_no_sandbox() -> None:
    backend = FakeBackend(lambda box, argv: finished(stderr=b"disk full", exit_code=1))
    with pytest.raises(SandboxError, match=r"could not be laid out: /bin/mkdir .*: disk full"):
        LAYER.start(backend, SandboxSpec())
    assert backend.started[0].closed
