"""A server of this process that stands for the Hugging Face Hub: its HTTP interface as huggingface_hub uses it."""

import base64
import hashlib
import json
import os
import threading
from pathlib import Path

import flask
from werkzeug.serving import make_server

TOKEN = "hf_token"
LARGE = 10_000  # bytes; larger files are uploaded as LFS objects, as are *.safetensors


class Hub:
    """The Hub at `url`, for processes with this `environment`. Repositories are made by `commit`, or by clients with
    TOKEN.

    Attributes:
      requests: "METHOD /path" of every request, in order.
      repositories: (type, id) -> {"commits": {commit: {path: content}}, "refs": {branch: commit}, "private": bool}.
    """

    def __init__(self, cache):
        self.requests, self.repositories, self._objects = [], {}, {}
        self._server = make_server("127.0.0.1", 0, self._app(), threaded=True)
        self.url = f"http://127.0.0.1:{self._server.port}"
        self.environment = {"HF_ENDPOINT": self.url, "HF_HOME": str(cache), "HF_HUB_DISABLE_XET": "1",
                            "HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_TELEMETRY": "1", "HF_TOKEN": TOKEN}
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def stop(self):
        self._server.shutdown()
        self._server.server_close()

    def patch(self, monkeypatch):
        """Lets the library in this process use this Hub."""
        from huggingface_hub import constants

        for name, value in self.environment.items():
            monkeypatch.setenv(name, value)
        cache = os.path.join(self.environment["HF_HOME"], "hub")
        monkeypatch.setattr(constants, "ENDPOINT", self.url)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", cache)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE",
                            self.url + "/{repo_id}/resolve/{revision}/{filename}")
        monkeypatch.setattr(constants, "HF_URL_HOSTS", constants.HF_URL_HOSTS | {"127.0.0.1"})

    def commit(self, repo, files, kind="models", branch="main"):
        """Adds files {path: bytes, text or local path}, and returns the commit."""
        repository = self.repositories.setdefault((kind, repo), {"commits": {}, "refs": {}, "private": False})
        content = dict(repository["commits"].get(repository["refs"].get(branch), {}))
        for name, value in files.items():
            content[name] = value.read_bytes() if isinstance(value, Path) else (
                value.encode() if isinstance(value, str) else value)
        identity = json.dumps([repo, len(repository["commits"]), sorted(content)])
        commit = hashlib.sha1(identity.encode()).hexdigest()
        repository["commits"][commit], repository["refs"][branch] = content, commit
        return commit

    def files(self, repo, kind="models", branch="main"):
        """Returns the files {path: bytes} of a repository."""
        repository = self.repositories[kind, repo]
        return repository["commits"][repository["refs"][branch]]

    def _find(self, kind, repo, revision="main"):
        """Finds (the commit, its files), or ends the request with the Hub's error."""
        repository = self.repositories.get((kind, repo))
        if repository is None or (repository["private"] and not _authorized()):
            _refuse(401 if not _authorized() else 404, "RepoNotFound", "Repository not found")
        commit = repository["refs"].get(revision, revision)
        if commit not in repository["commits"]:
            _refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return commit, repository["commits"][commit]

    def _app(self):
        app = flask.Flask("hub")
        self._accept_uploads(app)

        @app.before_request
        def note():
            self.requests.append(f"{flask.request.method} {flask.request.path}")

        @app.get("/api/<any(models, datasets):kind>/<owner>/<name>")
        @app.get("/api/<any(models, datasets):kind>/<owner>/<name>/revision/<path:revision>")
        def info(kind, owner, name, revision="main"):
            commit, files = self._find(kind, f"{owner}/{name}", revision)
            return {"id": f"{owner}/{name}", "sha": commit, "private": False, "tags": [], "downloads": 0, "likes": 0,
                    "siblings": [{"rfilename": path} for path in files]}

        @app.get("/api/<any(models, datasets):kind>/<owner>/<name>/tree/<revision>")
        def tree(kind, owner, name, revision):
            _, files = self._find(kind, f"{owner}/{name}", revision)
            return [{"type": "file", "path": path, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                    for path, content in files.items()]

        @app.get("/<owner>/<name>/resolve/<revision>/<path:path>", defaults={"kind": "models"})
        @app.get("/<any(datasets):kind>/<owner>/<name>/resolve/<revision>/<path:path>")
        def resolve(kind, owner, name, revision, path):
            commit, files = self._find(kind, f"{owner}/{name}", revision)
            if path not in files:
                _refuse(404, "EntryNotFound", "Entry not found", {"X-Repo-Commit": commit})
            return flask.Response(files[path], headers={
                "ETag": f'"{hashlib.sha1(files[path]).hexdigest()}"', "X-Repo-Commit": commit})

        return app

    def _accept_uploads(self, app):
        @app.post("/api/repos/create")
        def create():
            _authorize()
            given = flask.request.json
            repo, kind = f"{given.get('organization') or 'me'}/{given['name']}", f"{given.get('type') or 'model'}s"
            url = {"url": f"{self.url}/{'datasets/' * (kind == 'datasets')}{repo}"}
            if (kind, repo) in self.repositories:
                return {**url, "error": "You already created this model repo"}, 409
            self.commit(repo, {".gitattributes": "*.safetensors filter=lfs\n"}, kind)
            self.repositories[kind, repo]["private"] = given.get("visibility") == "private"
            return url

        @app.post("/api/<any(models, datasets):kind>/<owner>/<name>/branch/<branch>")
        def create_branch(kind, owner, name, branch):
            _authorize()
            commit, _ = self._find(kind, f"{owner}/{name}")
            refs = self.repositories[kind, f"{owner}/{name}"]["refs"]
            if branch in refs:
                _refuse(409, "", f"Reference already exists: {branch}")
            refs[branch] = commit
            return ""

        @app.post("/api/validate-yaml")
        def validate():
            assert flask.request.json["content"].startswith("---\n")
            return {"errors": [], "warnings": []}

        @app.post("/api/<any(models, datasets):kind>/<owner>/<name>/preupload/<revision>")
        def preupload(kind, owner, name, revision):
            _authorize()
            return {"files": [{
                "path": file["path"], "shouldIgnore": False,
                "uploadMode": "lfs" if file["size"] > LARGE or file["path"].endswith(".safetensors") else "regular",
            } for file in flask.request.json["files"]]}

        @app.post("/<owner>/<name>.git/info/lfs/objects/batch")
        def batch(owner, name):
            _authorize()
            return {"transfer": "basic", "objects": [
                {**given, "actions": {"upload": {"href": f"{self.url}/lfs/{given['oid']}"}}}
                for given in flask.request.json["objects"]]}

        @app.put("/lfs/<oid>")
        def put(oid):
            content = flask.request.get_data()
            assert hashlib.sha256(content).hexdigest() == oid
            self._objects[oid] = content
            return ""

        @app.post("/api/<any(models, datasets):kind>/<owner>/<name>/commit/<revision>")
        def commit(kind, owner, name, revision):
            _authorize()
            repo, added = f"{owner}/{name}", {}
            self._find(kind, repo, revision)
            for line in flask.request.get_data().splitlines():
                key, value = (json.loads(line)[field] for field in ("key", "value"))
                if key == "file":
                    added[value["path"]] = base64.b64decode(value["content"])
                elif key == "lfsFile":
                    added[value["path"]] = self._objects[value["oid"]]
                else:
                    assert key == "header" and value["summary"]
            oid = self.commit(repo, added, kind, revision)
            return {"success": True, "commitOid": oid, "commitUrl": f"{self.url}/{repo}/commit/{oid}"}


def _authorized():
    return flask.request.headers.get("authorization") == f"Bearer {TOKEN}"


def _authorize():
    if not _authorized():
        _refuse(401, "", "Invalid username or password.")


def _refuse(status, code, message, headers=()):
    flask.abort(flask.Response(json.dumps({"error": message}), status, {
        **({"X-Error-Code": code} if code else {}), "X-Error-Message": message, **dict(headers)}))
