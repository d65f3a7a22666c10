"""Nothing that is read can run code: neither pickles nor anything else that loads as a program."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from audit_hook import open_hostile_files
from in_subprocess import apart
from scorecard import ROOT, Torture

SOURCES = ROOT / "src" / "fedfomo"
CALLS = {"eval", "exec", "compile", "__import__", "torch.load", "os.system", "os.popen", "marshal.loads", "yaml.load"}
MODULES = {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal", "yaml"}
WHAT_A_SITE_WRITES_ITSELF = {"user_code.py"}  # it runs the site's own Python files, as documented


def _suspicious(path: Path, source: str) -> Iterator[str]:
    """Name what in a source could run what it reads."""
    for node in ast.walk(ast.parse(source)):
        where = f"{path.name}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] + (
                [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            )
            yield from (f"{where} imports {name}" for name in names if name.split(".")[0] in MODULES)
        if isinstance(node, ast.Call):
            call = ast.unparse(node.func)
            options = {word.arg: ast.unparse(word.value) for word in node.keywords}
            if call in CALLS or options.get("shell") == "True" or options.get("allow_pickle") == "True":
                yield f"{where} calls {ast.unparse(node)[:80]}"
            if call.endswith("np.load") and options.get("allow_pickle") != "False":
                yield f"{where} calls np.load without forbidding pickles"
            if call.endswith("exec_module") and path.name not in WHAT_A_SITE_WRITES_ITSELF:
                yield f"{where} runs a module"


def test_no_file_and_no_message_runs_code(torture: Torture, tmp_path: Path) -> None:
    found = apart(open_hostile_files, tmp_path, 1000 if torture.is_full else 48)
    twin = found["twin"]
    sources = {path: path.read_text() for path in SOURCES.rglob("*.py")}
    suspicious = [line for path, source in sources.items() for line in _suspicious(path, source)]
    planted = "import pickle, numpy as np\nnp.load(x)\ntorch.load(f, weights_only=False)\neval(s)\nrun(c, shell=True)\n"
    calls = sum(found["seen"].values())
    torture.record(
        "14",
        "No file and no message runs code",
        f"{found['files']} hostile files (pickles, torch archives, arrays of objects, marshalled code, lying headers,"
        f" escaping archives, PostScript, …), each to {found['loaders']} loaders under an audit hook;"
        f" a scan of {len(sources)} source files",
        f"{calls} calls of pickle, marshal, exec, subprocess or sockets, {len(found['left'])} files left behind,"
        f" {len(suspicious)} suspicious lines; a planted torch.load tripped the hook"
        f" {sum(twin.values())} times",
        calls == 0
        and not found["left"]
        and not found["strays"]
        and not suspicious
        and twin.get("pickle.find_class", 0) > 0
        and len(list(_suspicious(Path("planted.py"), planted))) == 5,
        found=found,
        suspicious=suspicious,
    )
