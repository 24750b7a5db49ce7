#!/usr/bin/env bash
# Makes the tests' base image from the packages installed here, in seconds and without a registry.
#
#   base_image.sh [ADDRESS]    prints the image's name; ADDRESS is the engine's, DOCKER_HOST otherwise
#
# The image holds bash, the usual tools and Debian's python3, with what they depend on: the same libraries as
# here, so that a runtime built here runs in it. It has no package of Python's, and nothing below /root.
set -euo pipefail

address=${1:-${DOCKER_HOST:-unix:///var/run/docker.sock}}
wanted=(base-files base-passwd bash coreutils dash diffutils findutils grep gzip libc-bin procps
  python3 python3-minimal sed tar util-linux util-linux-extra)
fail() { echo "base_image.sh: $1" >&2; exit 1; }

command -v dpkg-query >/dev/null || fail "expected Debian or Ubuntu, whose packages make the image"
[ -x /usr/bin/python3 ] && dpkg-query -s python3 >/dev/null 2>&1 || {
  [ "$(id -u)" = 0 ] || fail "expected the package python3; apt-get install python3"
  apt-get update -qq >&2 && apt-get install -qqy --no-install-recommends python3 >&2
}

# As a script, for the closure over dependencies and the import over the engine's socket.
exec /usr/bin/python3 -I - "${address#unix://}" "${wanted[@]}" <<'PY'
import hashlib, http.client, io, os, re, socket, subprocess, sys, tarfile

address, wanted = sys.argv[1], sys.argv[2:]
NAME = "fpenv-test-base"
fields = "${Package}\t${Status}\t${Version}\t${Pre-Depends}, ${Depends}\t${Provides}\n"
needs, versions, provided = {}, {}, {}
for line in subprocess.run(["dpkg-query", "-Wf", fields], capture_output=True, text=True, check=True).stdout.splitlines():
    name, status, version, depends, provides = line.split("\t")
    if status.endswith(" installed"):
        names = lambda text: [re.split(r"[ (:\[]", part.strip())[0] for part in re.split("[,|]", text) if part.strip()]
        needs[name], versions[name] = names(depends), version
        for other in names(provides):
            provided.setdefault(other, name)
packages, todo = set(), list(wanted)
while todo:
    name = todo.pop()
    name = name if name in needs else provided.get(name)
    if name and name not in packages and not name.startswith(("debconf", "init-system-helpers", "media-types")):
        packages.add(name)
        todo += needs[name]
tag = hashlib.sha256(repr(sorted((name, versions[name]) for name in packages)).encode()).hexdigest()[:12]


def resolve(path, merged):
    """Packages name /bin/x, which lies in /usr/bin where the two are merged."""
    top, _, rest = path[1:].partition("/")
    return f"/{os.readlink('/' + top).strip('/')}/{rest}".rstrip("/") if top in merged else path


class Connection(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(address)


def ask(method, path, body=None):
    connection = Connection("engine", timeout=300)
    try:
        connection.request(method, path, body, {"Content-Type": "application/tar"} if body else {})
    except BrokenPipeError:
        pass  # it has answered already
    reply = connection.getresponse()
    return reply.status, reply.read().decode(errors="replace")


if ask("GET", f"/images/{NAME}:{tag}/json")[0] != 200:
    listed = subprocess.run(["dpkg-query", "-L", *sorted(packages)], capture_output=True, text=True).stdout
    left_out = ("/usr/share/doc", "/usr/share/man", "/usr/share/locale", "/usr/share/info", "/usr/include", "/root")
    paths = {p for p in listed.splitlines() if p.startswith("/") and p != "/." and not p.startswith(left_out)}
    paths |= {"/etc/passwd", "/etc/group"}
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        merged = [name for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32") if os.path.islink("/" + name)]
        for name in merged:
            archive.add("/" + name, name, recursive=False)
        for path in sorted({resolve(path, merged) for path in paths} - {"/" + name for name in merged}):
            if os.path.lexists(path) and os.path.realpath(os.path.dirname(path)) == os.path.dirname(path):
                archive.add(path, path.strip("/"), recursive=False)
    status, said = ask("POST", f"/images/create?fromSrc=-&repo={NAME}&tag={tag}", data.getvalue())
    if status != 200 or '"error"' in said:
        sys.exit(f"base_image.sh: the engine did not import the image: {said.strip()[-500:]}")
print(f"{NAME}:{tag}")
PY
