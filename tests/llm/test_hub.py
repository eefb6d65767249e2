"""Hugging Face's URL layout, mimicked by a local server: the real one is not reached by any test."""

import hashlib
import http.server
import json
import threading

import pytest

from wireherd.errors import ModelError, UsageError
from wireherd.llm import hub

FILES = {
    "README.md": b"# hello",
    "tiny-Q8_0.gguf": b"GGUF eight",
    "tiny-Q4_K_M.gguf": b"GGUF four",
    "tiny-F16.gguf": b"GGUF sixteen",
    "mmproj-Q4_K_M.gguf": b"GGUF picture",
    "big/big-Q5_K_M-00001-of-00002.gguf": b"GGUF first",
    "big/big-Q5_K_M-00002-of-00002.gguf": b"GGUF second",
}


class Hub(http.server.ThreadingHTTPServer):
    daemon_threads = True
    gated = False
    damaged = False

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked = []
        self.cdn = None

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        server = self.server
        server.asked.append((self.path, self.headers.get("Authorization")))
        if server.gated and not self.headers.get("Authorization"):
            return self.answer(401, b"")
        if self.path == "/api/models/me/tiny/tree/main?recursive=true":
            return self.listing(list(FILES)[:4], {"Link": f'<{server.url}/api/page2>; rel="next"'})
        if self.path == "/api/page2":
            return self.listing(list(FILES)[4:])
        prefix = "/me/tiny/resolve/main/"
        if self.path.startswith(prefix) and server.cdn:
            return self.answer(302, b"", {"Location": server.cdn + self.path})
        if self.path.startswith(prefix) and self.path[len(prefix) :] in FILES:
            body = FILES[self.path[len(prefix) :]]
            return self.answer(200, body[:-1] + b"?" if server.damaged else body)
        return self.answer(404, b"{}")

    def listing(self, names, headers=()):
        entries = [{"type": "directory", "path": "big"}]
        for name in names:
            entry = {"type": "file", "path": name, "size": len(FILES[name]), "oid": "git"}
            if name.endswith(".gguf"):
                entry["lfs"] = {
                    "oid": hashlib.sha256(FILES[name]).hexdigest(),
                    "size": len(FILES[name]),
                    "pointerSize": 1,
                }
            entries.append(entry)
        return self.answer(200, json.dumps(entries).encode(), headers)

    def answer(self, code, body, headers=()):
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        for key, value in dict(headers).items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def servers(monkeypatch, tmp_path):
    pair = [Hub(), Hub()]
    threads = [threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}) for server in pair]
    for thread in threads:
        thread.start()
    monkeypatch.setenv("HF_ENDPOINT", pair[0].url)
    monkeypatch.setenv("WIREHERD_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("LLAMA_CACHE", raising=False)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    yield pair
    for server, thread in zip(pair, threads, strict=True):
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize(
    ("spec", "name"),
    [("me/tiny", "tiny-Q4_K_M.gguf"), ("me/tiny:q8_0", "tiny-Q8_0.gguf"), ("me/tiny:F16", "tiny-F16.gguf")],
)
def test_the_quantisation_is_chosen_as_llama_cpp_does(servers, spec, name):
    path = hub.pull(spec)
    assert path.name == "me_tiny_" + name
    assert path.read_bytes() == FILES[name]


def test_all_parts_of_a_split_model_come(servers):
    first = hub.pull("me/tiny:Q5_K_M")
    assert first.name == "me_tiny_big_big-Q5_K_M-00001-of-00002.gguf"
    assert first.with_name(first.name.replace("00001-of", "00002-of")).read_bytes() == b"GGUF second"


def test_cache_and_offline(servers, monkeypatch, tmp_path):
    with pytest.raises(ModelError, match="--offline"):
        hub.pull("me/tiny", offline=True)
    monkeypatch.setenv("LLAMA_CACHE", str(tmp_path / "shared"))
    path = hub.pull("me/tiny")
    assert path.parent == tmp_path / "shared"
    asked = len(servers[0].asked)
    assert hub.pull("me/tiny", offline=True) == path
    assert len(servers[0].asked) == asked


def test_the_token_goes_to_the_hub_and_not_to_its_storage(servers, monkeypatch):
    main, storage = servers
    main.gated = True
    main.cdn = storage.url
    with pytest.raises(ModelError, match="HF_TOKEN"):
        hub.pull("me/tiny")
    monkeypatch.setenv("HF_TOKEN", "secret")
    hub.pull("me/tiny")
    assert main.asked[-1] == ("/me/tiny/resolve/main/tiny-Q4_K_M.gguf", "Bearer secret")
    assert storage.asked == [("/me/tiny/resolve/main/tiny-Q4_K_M.gguf", None)]


def test_damage_is_noticed(servers):
    servers[0].damaged = True
    with pytest.raises(ModelError, match="not the expected file"):
        hub.pull("me/tiny")


def test_what_is_not_there(servers):
    with pytest.raises(ModelError, match="does not give out the model me/other"):
        hub.pull("me/other")
    with pytest.raises(ModelError, match="holds no GGUF file of quantisation Q2_K"):
        hub.pull("me/tiny:Q2_K")


def test_a_model_of_no_parts_is_one_file(servers, monkeypatch):
    monkeypatch.setitem(FILES, "big/none-Q3_K-00001-of-00000.gguf", b"GGUF odd")
    assert hub.pull("me/tiny:Q3_K").read_bytes() == b"GGUF odd"


def test_a_cache_folder_that_cannot_be_made(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LLAMA_CACHE", str(tmp_path / "file"))
    with pytest.raises(UsageError, match="LLAMA_CACHE"):
        hub.pull("me/tiny", offline=True)


@pytest.mark.parametrize("address", ["http://me:secret@[x", "http://127.0.0.1:port", "ftp://h"])
def test_an_endpoint_that_is_no_address(monkeypatch, tmp_path, address):
    monkeypatch.setenv("WIREHERD_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_ENDPOINT", address)
    with pytest.raises(ModelError, match="cannot fetch") as caught:
        hub.pull("me/tiny")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("spec", ["tiny", "a/b/c", "../etc:x", "me/..", "me/ti ny", ""])
def test_nonsense(spec):
    with pytest.raises(UsageError, match="user/repo"):
        hub.pull(spec)
