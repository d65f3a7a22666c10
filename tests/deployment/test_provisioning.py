from __future__ import annotations

import ipaddress
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography import x509

from cli_calls import call, refused
from federations import fedfomo
from fedfomo.deployment import provisioning
from fedfomo.deployment.encryption import DecryptionError, MessageCipher, Purpose
from fedfomo.deployment.provisioning import add_site, provision
from fedfomo.deployment.renewal import renew_site
from fedfomo.deployment.server_process import ServerProcess
from fedfomo.deployment.settings import FederationConfig, FederationFolder, SiteFolder
from fedfomo.deployment.site_process import SiteProcess
from fedfomo.errors import InputError
from fedfomo.runs.config_io import read_toml


def _make(place: Path, **settings: object) -> FederationFolder:
    folder = FederationFolder(place / "federation")
    provision(folder, ["leeds", "turin"], FederationConfig(max_sites=3, **settings))  # type: ignore[arg-type]
    return folder


def test_private_keys_are_for_their_owners(tmp_path: Path) -> None:
    folder = _make(tmp_path)
    keys = list(folder.path.rglob("*.key"))
    assert len(keys) == 1 + 2 + 2 * 2  # authority; server: TLS and seal; sites: authentication and seal
    for path in keys:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for path in (folder.path, folder.server, folder.authority, folder.sites / "leeds"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_the_certificate_is_for_the_address_and_signed_by_the_authority(tmp_path: Path) -> None:
    folder = _make(tmp_path, address="fed.example.org:443")
    server = x509.load_pem_x509_certificate((folder.server / "server.crt").read_bytes())
    authority = x509.load_pem_x509_certificate((folder.authority / "ca.crt").read_bytes())
    server.verify_directly_issued_by(authority)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert set(names.get_values_for_type(x509.DNSName)) == {"fed.example.org", "localhost"}
    assert ipaddress.ip_address("127.0.0.1") in names.get_values_for_type(x509.IPAddress)
    assert (folder.sites / "leeds" / "ca.crt").read_bytes() == (folder.authority / "ca.crt").read_bytes()


def test_what_is_handed_over_holds_no_key_of_anybody_else(tmp_path: Path) -> None:
    folder = _make(tmp_path)
    files = {path.name for path in (folder.sites / "leeds").iterdir()}
    assert files == {
        "authentication.key",
        "sealing.key",
        "ca.crt",
        "site.json",
        "model.py",
        "data.py",
        "privacy.toml",
        "policy.toml",
    }
    others = [path.read_bytes() for path in folder.path.rglob("*.key") if path.parent.name != "leeds"]
    content = b"".join(path.read_bytes() for path in (folder.sites / "leeds").iterdir())
    assert not any(other in content for other in others)


def test_sites_are_added_while_there_is_room_each_in_a_slot_of_its_own(tmp_path: Path) -> None:
    folder = _make(tmp_path)
    add_site(folder, "lyon")
    assert sorted(site.slot for site in folder.registry()) == [0, 1, 2]
    with pytest.raises(InputError, match="was made for 3 sites"):
        add_site(folder, "porto")
    with pytest.raises(InputError, match="exists already"):
        add_site(folder, "lyon")
    with pytest.raises(InputError, match="use a-z"):
        add_site(folder, "../lyon")
    with pytest.raises(InputError, match="exists"):
        provision(folder, ["leeds"], FederationConfig(max_sites=3))


def test_a_site_whose_adding_was_killed_can_be_added_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = _make(tmp_path)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as death:
        death.setattr(SiteFolder, "write_card", killed)
        with pytest.raises(KeyboardInterrupt):
            add_site(folder, "lyon")
    assert not (folder.sites / "lyon").exists()
    site = add_site(folder, "lyon")
    assert site.path == folder.sites / "lyon"
    assert site.card().name == "lyon"
    assert {path.name for path in folder.sites.iterdir()} == {"leeds", "turin", "lyon"}


def test_a_folder_that_is_no_sites_is_not_taken_for_one(tmp_path: Path) -> None:
    folder = _make(tmp_path)
    (folder.sites / "lyon").mkdir()
    with pytest.raises(InputError, match="lyon exists, and no site of that name: move the folder away"):
        add_site(folder, "lyon")
    assert [site.name for site in folder.registry()] == ["leeds", "turin"]


def test_sites_that_are_added_at_once_are_all_registered(tmp_path: Path) -> None:
    folder = FederationFolder(tmp_path / "federation")
    provision(folder, ["leeds"], FederationConfig(max_sites=6))
    adding = "import sys, pathlib; from fedfomo.deployment import provisioning, settings; " + (
        "provisioning.add_site(settings.FederationFolder(pathlib.Path(sys.argv[1])), sys.argv[2])"
    )
    names = [f"site-{n}" for n in range(5)]
    children = [subprocess.Popen([sys.executable, "-c", adding, str(folder.path), name]) for name in names]
    assert [child.wait() for child in children] == [0] * 5
    assert sorted(site.name for site in folder.registry()) == ["leeds", *names]
    assert sorted(site.slot for site in folder.registry()) == list(range(6))


def test_a_seal_opens_for_its_receiver_and_names_its_sender(tmp_path: Path) -> None:
    folder = _make(tmp_path)
    server, leeds, turin = (
        MessageCipher.read(path / "sealing.key")
        for path in (folder.server, folder.sites / "leeds", folder.sites / "turin")
    )
    encrypted = server.encrypt(leeds.public_key, b"a model", Purpose.REQUEST)
    assert leeds.decrypt(server.public_key, encrypted, Purpose.REQUEST) == b"a model"
    for opener, sender, content in (
        (turin, server, encrypted),
        (leeds, turin, encrypted),
        (leeds, server, encrypted[:-1] + bytes([encrypted[-1] ^ 1])),
        (leeds, server, b"short"),
    ):
        with pytest.raises(DecryptionError):
            opener.decrypt(sender.public_key, content, Purpose.REQUEST)
    card = SiteFolder(folder.sites / "leeds").card()
    assert card.server_seal == server.public_key


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"bits": 4}, "bits must be 8, 16 or 32"),
        ({"min_clients": 0}, "min_clients must be at least 1"),
        ({"min_clients": 4, "max_sites": 3}, r"min_clients \(4\) is more than max_sites \(3\)"),
        ({"deadline": 0}, "deadline must be above 0"),
        ({"address": "nowhere"}, "address must be host:port"),
        ({"plaintext": True, "address": "10.0.0.1:80"}, "plaintext is for this machine alone"),
        ({"plaintext": True, "listen": "0.0.0.0:80"}, "plaintext is for this machine alone"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, object], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        FederationConfig(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--sites", "Leeds,turin"], "site name 'Leeds': use a-z"),
        (["--sites", "leeds turin"], "site name 'leeds turin': use a-z"),
        (["--sites", "turin,leeds,turin"], "site 'turin' exists already"),
        (["--sites", "leeds,turin", "--method", "fedfom"], "unknown method 'fedfom': did you mean 'fedfomo'?"),
        (["--sites", "leeds,turin", "--fedfomo-plus.num-download", "3"], "did you mean --fedfomo-plus.num-downloads?"),
        (["--sites", "leeds,turin,lyon", "--max-sites", "2"], "max_sites is 2, for 3 sites: raise --max-sites"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_written(
    arguments: list[str], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert line in refused(capsys, "deploy", "init", *arguments, "--folder", str(tmp_path / "federation"))
    assert list(tmp_path.iterdir()) == []


def test_the_commands_make_a_federation_and_tell_its_state(tmp_path: Path) -> None:
    place = str(tmp_path / "federation")
    fedfomo("init", "--sites", "leeds,turin", "--folder", place, "--rounds", "7", "--method", "fedavg")
    fedfomo("add-site", "lyon", "--folder", place)
    assert fedfomo("status", place).splitlines()[:2] == [
        "fedavg, 7 rounds, 3 of up to 4 sites, 32 bits",
        "no round is complete yet",
    ]


def test_a_network_of_ones_own_goes_to_all(tmp_path: Path) -> None:
    folder, own = FederationFolder(tmp_path / "federation"), tmp_path / "own.py"
    with pytest.raises(InputError, match="there is no file"):
        provision(folder, ["leeds"], FederationConfig(max_sites=2), own)
    own.write_text("def make_model(): ...\n")
    provision(folder, ["leeds"], FederationConfig(max_sites=2), own)
    add_site(folder, "turin")
    places = (folder.path, folder.sites / "leeds", folder.sites / "turin")
    assert all((place / "model.py").read_text() == own.read_text() for place in places)


def test_what_a_practitioner_writes_is_short() -> None:
    templates = Path(__file__).parents[2] / "src" / "fedfomo" / "deployment" / "templates"
    for name in ("model.py", "data.py"):
        assert len((templates / name).read_text().splitlines()) < 30


def test_what_a_federations_file_leaves_open_is_the_default(tmp_path: Path) -> None:
    path = tmp_path / "federation.toml"
    path.write_text("rounds = 20\n")
    assert read_toml(path, FederationConfig) == FederationConfig()


def test_a_federation_of_fewer_sites_than_a_round_takes_is_not_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = ("deploy", "init", "--sites", "leeds", "--folder", str(tmp_path / "federation"))
    assert "1 site, and a round takes 2 sites or more" in refused(capsys, *place)
    assert not (tmp_path / "federation").exists()
    shared = ("deploy", "init", "--sites", "leeds,turin", "--method", "fedavg-shared")
    assert "sends examples" in refused(capsys, *shared, "--folder", str(tmp_path / "federation"))
    assert not (tmp_path / "federation").exists()


@pytest.mark.parametrize(
    ("address", "listens_on"),
    [
        ("127.0.0.1:8443", ("127.0.0.1", 8443)),
        ("fed.example.org:8443", ("127.0.0.1", 9443)),
        ("fed.example.org:65000", ("127.0.0.1", 64000)),
    ],
)
def test_a_server_that_others_reach_leaves_its_port_to_the_proxy(
    tmp_path: Path, address: str, listens_on: tuple[str, int]
) -> None:
    place = tmp_path / "federation"
    call("deploy", "init", "--sites", "leeds,turin", "--folder", str(place), "--address", address)
    folder = FederationFolder(place)
    assert folder.config().listens_on == listens_on
    recipe = (folder.operations / "nginx.conf").read_text()
    assert f"listen {address.rpartition(':')[2]} ssl;" in recipe
    assert f"upstream fedfomo {{ server 127.0.0.1:{listens_on[1]};" in recipe


def test_keys_that_others_can_read_are_not_used(tmp_path: Path) -> None:
    folder = FederationFolder(tmp_path / "federation")
    provision(folder, ["leeds", "turin"], FederationConfig(max_sites=2))
    site = SiteFolder(folder.sites / "leeds")
    for mode in (0o644, 0o640, 0o602):
        for key in (site.seal, site.key):
            key.chmod(mode)
            with pytest.raises(InputError, match=f"{key.name} is a private key, and other accounts.*chmod 600"):
                SiteProcess(site, None, 1, print).run()
            key.chmod(0o600)
        for key in (folder.server / "server.key", folder.server / "sealing.key"):
            key.chmod(mode)
            with pytest.raises(InputError, match=f"{key.name} is a private key"):
                ServerProcess(folder, print).run()
            key.chmod(0o600)


def test_a_federation_that_cannot_be_made_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = FederationFolder(tmp_path / "federation")
    with monkeypatch.context() as broken:
        broken.setattr(provisioning, "write_operations", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            provision(folder, ["leeds"], FederationConfig(max_sites=2))
    assert list(tmp_path.iterdir()) == []
    provision(folder, ["leeds"], FederationConfig(max_sites=2))
    assert [path.name for path in tmp_path.iterdir()] == ["federation"]
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    written = [path.read_text() for path in folder.operations.iterdir()]
    assert any(str(folder.path) in text for text in written)
    assert not any("unfinished" in text for text in written)


def test_new_keys_of_a_site_replace_no_other_sites_folder(tmp_path: Path) -> None:
    folder = FederationFolder(tmp_path / "federation")
    provision(folder, ["lyon", "lyon-renewed"], FederationConfig(max_sites=2))
    other = folder.sites / "lyon-renewed"
    before = {path.name: path.read_bytes() for path in other.iterdir()}
    for _ in range(2):
        place = renew_site(folder, "lyon")
        assert SiteFolder(place).card().name == "lyon"
        assert {path.name: path.read_bytes() for path in other.iterdir()} == before
