"""What `make versions` makes of an archive and of a report; nothing is fetched here."""

from __future__ import annotations

import io
import json
import tarfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import postgresql_versions as versions

REPORT = """<testsuites><testsuite>
  <testcase classname="a.b" name="good"/>
  <testcase classname="a.b" name="bad"><failure message="no"/></testcase>
  <testcase classname="a.b" name="broken"><error message="no"/></testcase>
  <testcase classname="a.b" name="left out"><skipped/></testcase>
</testsuite></testsuites>"""


def test_a_report_is_counted() -> None:
    ran = versions.counted("13", "13.23", 1.0, ElementTree.fromstring(REPORT))
    assert (ran.passed, ran.failed, ran.skipped) == (1, 2, 1)
    assert ran.failing == ("a.b::bad", "a.b::broken")
    assert not ran.is_good


def test_no_tests_are_not_good() -> None:
    ran = versions.counted("13", "13.23", 1.0, ElementTree.fromstring("<testsuites/>"))
    assert (ran.passed, ran.failed, ran.is_good) == (0, 0, False)


def test_an_archive_gets_its_links(tmp_path: Path) -> None:
    archive = tmp_path / "archive.tgz"
    links = [{"source": "native/lib/libx.so.1.2", "target": "native/lib/libx.so.1"}]
    files = {
        "package/native/pg-symlinks.json": json.dumps(links).encode(),
        "package/native/lib/libx.so.1.2": b"library",
        "package/native/bin/postgres": b"program",
    }
    with tarfile.open(archive, "w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    versions.unpacked(archive, tmp_path)
    native = tmp_path / "package" / "native"
    assert (native / "lib" / "libx.so.1").is_symlink()
    assert (native / "lib" / "libx.so.1").read_bytes() == b"library"
    assert (native / "bin" / "postgres").stat().st_mode & 0o111 == 0o111


def test_every_promised_version_is_there() -> None:
    assert list(versions.PACKAGES) == [str(major) for major in range(13, 19)]
    assert all(package.startswith(f"{major}.") for major, package in versions.PACKAGES.items())
