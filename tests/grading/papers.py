"""PDF files written by hand, honest and hostile."""

import zlib


def pdf(*pages: bytes, resources: bytes = b"", compress: bool = False) -> bytes:
    """A PDF with one page for each content stream. /F is Helvetica."""
    objects = [b"<</Type/Catalog/Pages 2 0 R>>", b"", b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>"]
    kids = []
    for content in pages:
        kids.append(len(objects) + 1)
        page = b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 600 800]/Contents %d 0 R/Resources<</Font<</F 3 0 R>>%s>>>>"
        objects.append(page % (len(objects) + 2, resources))
        data = zlib.compress(content, 9) if compress else content
        filtered = b"/Filter/FlateDecode" if compress else b""
        objects.append(b"<</Length %d%s>>stream\n%s\nendstream" % (len(data), filtered, data))
    objects[1] = b"<</Type/Pages/Count %d/Kids[%s]>>" % (len(kids), b" ".join(b"%d 0 R" % kid for kid in kids))
    out, offsets = b"%PDF-1.7\n", []
    for number, body in enumerate(objects, 1):
        offsets.append(len(out))
        out += b"%d 0 obj%s endobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    size = len(objects) + 1
    return out + b"xref\n0 %d\n0000000000 65535 f \n%strailer<</Size %d/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF" % (
        size,
        table,
        size,
        len(out),
    )


def lines(*texts: str, before: bytes = b"") -> bytes:
    """A content stream that shows lines of text."""
    shown = b"".join(b"(%s) Tj T* " % text.encode("latin-1").replace(b"(", b"\\(") for text in texts)
    return b"BT /F 11 Tf 14 TL 40 760 Td " + before + shown + b"ET"


def paper(*texts: str) -> bytes:
    """A one-page paper of lines."""
    return pdf(lines(*texts))


BOMB = pdf(b"0 Tr " * 10_000_000, compress=True)
"""50 MB of operators in 50 kB."""
