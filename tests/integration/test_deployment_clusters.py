"""Kubernetes, systemd and Slurm files, read by their schemas and tools."""

import os
import re

import pytest
from support.deployment import ROOT, documents, program, run

from ops.launch.cli import launch

K8S = ROOT / "ops" / "k8s"
PLAIN = sorted(
    path.name for path in K8S.glob("*.yaml") if path.name not in {"kustomization.yaml", "scaling.yaml"}
)
UNITS = sorted((ROOT / "ops" / "systemd").glob("*.service"))


@pytest.mark.parametrize("name", PLAIN)
def test_manifests_fit_the_schema(name):
    done = run(program("kubernetes-validate", "kubernetes-validate"), "--strict", K8S / name)
    assert done.returncode == 0, done.stdout + done.stderr


def test_scaling_fits_the_schema():
    keda = pytest.importorskip("cloudcoil.models.keda.v1alpha1") if "CI" not in os.environ else None
    if keda is None:
        from cloudcoil.models.keda import v1alpha1 as keda  # noqa: PLC0415  # in CI its absence is an error
    for document in documents(K8S / "scaling.yaml"):
        model = getattr(keda, document["kind"]).model_validate(document)
        # What the schema does not know is dropped, and so found missing.
        assert model.model_dump(by_alias=True, exclude_unset=True, mode="json") == document


def test_scaling_looks_at_the_queue():
    _, scaled = documents(K8S / "scaling.yaml")
    (trigger,) = scaled["spec"]["triggers"]
    assert trigger["metadata"]["listName"] == "rq:queue:completions"
    assert scaled["spec"]["scaleTargetRef"]["name"] == "consumer"
    known = {"address", "enableTLS", "databaseIndex", "listName", "listLength", "activationListLength"}
    assert set(trigger["metadata"]) <= known


def test_kustomize_takes_every_manifest_and_no_secret():
    (kustomization,) = documents(K8S / "kustomization.yaml")
    assert set(kustomization["resources"]) == {
        path.name
        for path in K8S.glob("*.yaml")
        if path.name not in {"kustomization.yaml", "secrets.example.yaml"}
    }
    for path in K8S.glob("*.yaml"):
        assert not re.search(r"<<:|&\w+$", path.read_text(), re.MULTILINE), "kustomize reads no merge keys"
        kinds = {document["kind"] for document in documents(path)}
        assert "Secret" not in kinds or path.name == "secrets.example.yaml"
    images = {image["name"] for image in kustomization["images"]}
    for container in _containers():
        assert container["image"] in images


def test_pods_name_only_secrets_that_the_example_explains():
    secrets = {document["metadata"]["name"] for document in documents(K8S / "secrets.example.yaml")}
    text = "".join(path.read_text() for path in K8S.glob("*.yaml"))
    used = set(re.findall(r"secretRef: \{name: ([\w-]+)\}", text)) | set(
        re.findall(r"parameter: \w+, name: ([\w-]+)", text)
    )
    assert used == secrets


def _pods():
    for name in ("consumer.yaml", "collector.yaml"):
        yield documents(K8S / name)[0]["spec"]["template"]["spec"]


def _containers():
    for pod in _pods():
        yield from [*pod.get("initContainers", []), *pod["containers"]]


def test_pods_drain_before_they_are_killed():
    (config,) = documents(K8S / "config.yaml")
    drain = int(config["data"]["PROMPTMILL_DRAIN_TIMEOUT"])
    pod = documents(K8S / "consumer.yaml")[0]["spec"]["template"]["spec"]
    (server,) = pod["initContainers"]
    assert server["restartPolicy"] == "Always"
    wait = int(re.search(r"monotonic\(\) \+ (\d+)", server["lifecycle"]["preStop"]["exec"]["command"][2])[1])
    assert drain < wait < pod["terminationGracePeriodSeconds"]


def test_pods_are_confined():
    for pod in _pods():
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["automountServiceAccountToken"] is False
    for container in _containers():
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["limits"]["memory"]


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_units_are_valid_and_hardened(unit, tmp_path):
    tool = program("systemd-analyze", "Debian's systemd")
    copy = tmp_path / unit.name.replace("@", "@30000")
    copy.write_text(re.sub(r"ExecStart=.*", "ExecStart=/bin/true", unit.read_text()))
    done = run(tool, "verify", "--man=no", copy)
    assert unit.name.partition(".")[0] not in done.stderr, done.stderr
    done = run(tool, "security", "--offline=true", "--threshold=20", copy)
    assert done.returncode == 0, done.stdout[-300:]


def test_units_drain_before_they_are_killed():
    unit = (ROOT / "ops" / "systemd" / "consumer@.service").read_text()
    drain, stop = (int(re.search(rf"{name}=(\d+)", unit)[1]) for name in ("DRAIN_TIMEOUT", "TimeoutStopSec"))
    assert drain < stop
    batch = (ROOT / "ops" / "slurm" / "promptmill.sbatch").read_text()
    warning = int(re.search(r"--signal=B:TERM@(\d+)", batch)[1])
    assert int(re.search(r"DRAIN_TIMEOUT:-(\d+)", batch)[1]) < warning


def test_the_batch_script_gives_options_that_exist():
    batch = (ROOT / "ops" / "slurm" / "promptmill.sbatch").read_text()
    call = batch[batch.index("ops launch") : batch.index("&\nlauncher")]
    known = {flag for parameter in launch.params for flag in parameter.opts}
    assert set(re.findall(r"--[a-z-]+", call)) <= known
