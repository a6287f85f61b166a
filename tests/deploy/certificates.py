"""Certificates of a cluster as docs/deploy.md makes them: a folder for each role, readable by the user of containers."""

import os
import pathlib

from serving import run

ROLES = ("router", "inference-rank", "cache-rank")
CONTAINER_USER = 65532
NEW = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]


class Certificates:
    """`folder`/ROLE has tls.crt, tls.key and ca.crt; the authority's own key is elsewhere."""

    def __init__(self, folder, authority_folder):
        self.folder = pathlib.Path(folder)
        self.authority = pathlib.Path(authority_folder, "ca.crt")
        self.authority_key = pathlib.Path(authority_folder, "ca.key")
        self.authority.parent.mkdir(parents=True)
        run(*NEW, "-subj", "/CN=winnow authority", "-keyout", self.authority_key, "-out", self.authority)
        for role in ROLES:
            (self.folder / role).mkdir(parents=True)
            self.issue(role)

    def issue(self, role):
        """A new certificate; files are replaced by renaming, the key first. Its serial number."""
        place = self.folder / role
        names = f"subjectAltName=URI:spiffe://winnow/{role},DNS:localhost,IP:127.0.0.1"
        run(*NEW, "-CA", self.authority, "-CAkey", self.authority_key, "-subj", f"/CN={role}", "-addext", names,
            "-addext", "basicConstraints=CA:FALSE", "-keyout", place / "new.key", "-out", place / "new.crt")
        (place / "new.ca").write_text(self.authority.read_text())
        for new, name in (("new.ca", "ca.crt"), ("new.key", "tls.key"), ("new.crt", "tls.crt")):
            os.chown(place / new, CONTAINER_USER, CONTAINER_USER)
            os.chmod(place / new, 0o400)
            os.rename(place / new, place / name)
        return run("openssl", "x509", "-in", place / "tls.crt", "-noout", "-serial").strip()
