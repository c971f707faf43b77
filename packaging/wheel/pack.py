#!/usr/bin/env python3
"""Packs a folder as a wheel: pack.py FOLDER WHEEL.

Adds the file RECORD (Binary distribution format of the Python packaging specifications). The same files give the same bytes:
their time is SOURCE_DATE_EPOCH.
"""

import base64
import csv
import hashlib
import io
import os
import sys
import time
import zipfile
from pathlib import Path

# Zip archives know no earlier time.
EARLIEST = 315532800


def record_of(name: str, data: bytes) -> list[str]:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return [name, f"sha256={digest}", str(len(data))]


def main(folder: Path, wheel: Path) -> None:
    moment = time.gmtime(max(int(os.environ["SOURCE_DATE_EPOCH"]), EARLIEST))[:6]
    [about] = folder.glob("*.dist-info")
    paths = [path for path in folder.rglob("*") if path.is_file()]
    # Installers read the metadata first, at the end of the archive.
    paths.sort(key=lambda path: (about in path.parents, str(path)))
    record = f"{about.name}/RECORD"
    rows = []
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:

        def add(name: str, data: bytes, mode: int) -> None:
            entry = zipfile.ZipInfo(name, moment)
            entry.compress_type = zipfile.ZIP_DEFLATED
            # A regular file with these rights.
            entry.external_attr = (0o100000 | mode) << 16
            archive.writestr(entry, data)

        for path in paths:
            name = path.relative_to(folder).as_posix()
            data = path.read_bytes()
            add(name, data, 0o755 if os.access(path, os.X_OK) else 0o644)
            rows.append(record_of(name, data))
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([*rows, [record, "", ""]])
        add(record, text.getvalue().encode(), 0o644)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
