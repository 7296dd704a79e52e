"""A stand-in for the Hugging Face hub's HTTP interface: what `upload_folder` and `snapshot_download` ask of it."""

from __future__ import annotations

import base64
import hashlib
import http.server
import json
import re
import threading
from urllib.parse import unquote, urlsplit

COMMIT = "1" * 40


class Hub(http.server.ThreadingHTTPServer):
    """Repositories by name: file -> bytes."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.repos: dict[str, dict[str, bytes]] = {}
        self.requests: list[str] = []
        self.tokens: set[str] = set()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def answer(self, data, status=200, **headers):
        body = data if isinstance(data, bytes) else json.dumps(data).encode()
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | headers).items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_POST(self):
        size = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(size) if size else self.chunks()
        path = self.noted()
        if path == "/api/repos/create":
            name = "/".join(filter(None, (json.loads(body).get("organization"), json.loads(body)["name"])))
            self.server.repos.setdefault(name if "/" in name else f"me/{name}", {})
            return self.answer({"url": f"{self.server.url}/me/{json.loads(body)['name']}", "id": name})
        if path == "/api/validate-yaml":
            return self.answer({"errors": [], "warnings": []})
        if "/preupload/" in path:
            files = [{"path": file["path"], "uploadMode": "regular", "shouldIgnore": False} for file in json.loads(body)["files"]]
            return self.answer({"files": files})
        if "/commit/" in path:
            name = path.split("/api/models/")[1].split("/commit/")[0]
            repo = self.server.repos[name]
            for line in body.splitlines():
                entry = json.loads(line)
                if entry["key"] == "file":
                    repo[entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
            url = f"{self.server.url}/{name}/commit/{COMMIT}"
            return self.answer({"commitUrl": url, "commitOid": COMMIT, "success": True})
        return self.answer({"error": "Not Found"}, 404)

    def chunks(self):
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def do_GET(self):
        path = self.noted()
        if path == "/api/whoami-v2":
            return self.answer({"name": "me", "type": "user", "orgs": [], "auth": {"accessToken": {"role": "write"}}})
        if path.startswith("/api/models/"):
            name = re.split("/revision/|/tree/", path.removeprefix("/api/models/"))[0]
            if name not in self.server.repos:
                return self.answer({"error": "Repository not found"}, 404, X_Error_Code="RepoNotFound")
            files = self.server.repos[name]
            if "/tree/" in path:
                return self.answer([{"type": "file", "path": f, "size": len(d), "oid": digest(d)} for f, d in files.items()])
            return self.answer({"id": name, "modelId": name, "sha": COMMIT, "siblings": [{"rfilename": f} for f in files]})
        name, _, file = path.lstrip("/").partition("/resolve/")
        data = self.server.repos.get(name, {}).get(file.partition("/")[2])
        if data is None:
            return self.answer({"error": "Not Found"}, 404, X_Error_Code="EntryNotFound")
        return self.answer(data, ETag=f'"{digest(data)}"', X_Repo_Commit=COMMIT, X_Linked_Size=str(len(data)))

    do_HEAD = do_GET

    def noted(self):
        path = unquote(urlsplit(self.path).path)
        self.server.requests.append(f"{self.command} {path}")
        self.server.tokens.add(self.headers.get("Authorization") or "")
        return path


def digest(data):
    return hashlib.sha1(data).hexdigest()
