#!/usr/bin/env python3
"""Metrics, alerts, dashboard and page against a real cluster, a real Prometheus and a real browser.

A switch, a parameter server and two workers over memif, and an agent, sum while Prometheus scrapes
them. Each series that a rule or the dashboard names must be there, or be in NOT_HERE with a reason.

    configs/prometheus/test.py [--bin target/release] [--picture FILE.png]
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
DASHBOARD = HERE.parent / "grafana" / "tally.json"
KEY = "000102030405060708090a0b0c0d0e0f"
# What a browser would run if the page took names for HTML.
HOSTILE = "<img src=x onerror=document.title='owned'>"
# Series of processes at an agent; a unit test of tally-schema has their names.
NOT_HERE = re.compile(r"^tally_agent_(?!info|uptime|warnings)")
NAME = re.compile(r"\btally_[a-z0-9_]+")
BROWSER = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --hide-scrollbars --window-size=1100,1150"
).split()

processes = []


def free_port():
    with socket.socket() as it:
        it.bind(("127.0.0.1", 0))
        return it.getsockname()[1]


def start(folder, name, *command):
    log = open(folder / f"{name}.log", "w")
    process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    processes.append((name, process))
    return process


def write(folder, name, value):
    path = folder / f"{name}.json"
    path.touch(mode=0o600)
    path.write_text(json.dumps(value))
    return path


def get(url, headers={}, timeout=5):
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        return answer.read().decode(), answer.headers


def until(seconds, what, ready):
    deadline = time.monotonic() + seconds
    while True:
        try:
            if found := ready():
                return found
        except (OSError, ValueError):
            pass
        if time.monotonic() > deadline:
            raise SystemExit(f"{what}: not within {seconds} s")
        time.sleep(0.1)


def device(folder, host, role):
    return f"net_memif{host if role == 'server' else 0},role={role},id={host},socket={folder}/memif.sock,socket-abstract=no,bsize=2048,rsize=8"


def cluster(folder, programs):
    """Starts all, and gives their metrics' addresses by program."""
    switch, ps, agent = (f"127.0.0.1:{free_port()}" for _ in range(3))
    names = ["w0", HOSTILE, "ps"]
    mac = lambda host: f"02:00:00:00:00:{host + 1:02x}"
    ip = lambda host: f"10.84.0.{host + 1}"
    dpdk = lambda host: {"type": "dpdk", "device": device(folder, host, "client"), "mac": mac(host), "address": ip(host)}
    config = {
        "address": {"mac": "02:00:00:00:00:fe", "ip": "10.84.0.254"},
        "cores": [0],
        "ports": [{"device": device(folder, host, "server"), "name": name} for host, name in enumerate(names)],
        "pool": {"slots": 64},
        "jobs": [{"id": 7, "key": KEY, "workers": 2}, {"id": 8, "key": KEY[::-1], "workers": 2}],
        "metrics": {"listen": switch},
    }
    start(folder, "switch", programs / "tally-switch", "--config", write(folder, "switch", config))
    until(20, "switch", lambda: get(f"http://{switch}/metrics"))
    address = {"address": "10.84.0.254"}
    config = {"switch": address, "jobs": [{"id": 7, "key": KEY}], "transport": dpdk(2), "metrics": {"listen": ps}}
    start(folder, "ps", programs / "tally-agent", "ps", "--config", write(folder, "ps", config))
    config = {
        "socket": str(folder / "agent.sock"),
        "switch": address,
        "transport": {"type": "udp", "bind": "127.0.0.1"},
        "jobs": [{"id": 8, "key": KEY[::-1], "workers": 2}],
        "metrics": {"listen": agent},
    }
    start(folder, "agent", programs / "tally-agent", "serve", "--config", write(folder, "agent", config))
    for host in range(2):
        job = {"id": 7, "key": KEY, "workers": 2, "rank": host}
        config = {"switch": address, "job": job, "transport": dpdk(host), "window": 256}
        command = ["allreduce", "--config", write(folder, f"worker{host}", config), "--synthetic", "--elements", "200k"]
        start(folder, f"worker{host}", programs / "tally-agent", *command, "--repeat", "100000", "--compute", "20")
    return {"switch": switch, "ps": ps, "agent": agent}


def promtool(*arguments, text=None):
    done = subprocess.run(["promtool", *arguments], input=text, capture_output=True, text=True, cwd=HERE)
    if done.returncode or done.stderr:
        raise SystemExit(f"promtool {' '.join(arguments)}:\n{done.stdout}{done.stderr}")


def check_formats(addresses):
    for program, address in addresses.items():
        text, headers = get(f"http://{address}/metrics")
        assert "version=0.0.4" in headers["Content-Type"], headers
        promtool("check", "metrics", text=text)
        text, headers = get(f"http://{address}/metrics", {"Accept": "application/openmetrics-text"})
        assert headers["Content-Type"].startswith("application/openmetrics-text") and text.endswith("# EOF\n")
        print(f"{program}: {len(text.splitlines())} lines of OpenMetrics, promtool finds no fault")


class Prometheus:
    def __init__(self, folder, addresses):
        self.address = f"127.0.0.1:{free_port()}"
        jobs = [{"job_name": f"tally-{name}", "static_configs": [{"targets": [at]}]} for name, at in addresses.items()]
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(HERE / "tally.rules.yml")],
            "scrape_configs": jobs,
        }
        # JSON is YAML.
        path = write(folder, "prometheus", config)
        start(folder, "prometheus", "prometheus", f"--config.file={path}", f"--storage.tsdb.path={folder}/tsdb",
              f"--web.listen-address={self.address}")
        until(15, "Prometheus", lambda: get(f"http://{self.address}/-/ready"))

    def ask(self, path, **parameters):
        text, _ = get(f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}")
        answer = json.loads(text)
        assert answer["status"] == "success", answer
        return answer["data"]

    def query(self, expression):
        try:
            return self.ask("query", query=expression)["result"]
        except urllib.error.HTTPError as error:
            raise SystemExit(f"{expression}: {error.read().decode()}")


def expressions():
    """Those of the rules and of the dashboard."""
    dashboard = json.loads(DASHBOARD.read_text())
    found = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
    identifiers = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(identifiers)) == len(identifiers)
    return [it.replace("$__rate_interval", "5s").replace("$instance", ".*") for it in found]


def check_expressions(prometheus):
    rules = prometheus.ask("rules")["groups"][0]["rules"]
    unhealthy = [rule for rule in rules if rule["health"] != "ok"]
    assert not unhealthy, unhealthy
    all_expressions = [rule["query"] for rule in rules] + expressions()
    names = set(prometheus.ask("label/__name__/values"))
    missing = {}
    for expression in all_expressions:
        prometheus.query(expression)
        for name in NAME.findall(expression):
            if name not in names and not NOT_HERE.match(name):
                missing.setdefault(name, []).append(expression)
    assert not missing, f"no such series: {missing}"
    print(f"{len(rules)} rules and {len(all_expressions) - len(rules)} expressions of the dashboard name series that are there")
    for expression in ["rate(tally_results_total[5s])", "tally_ps_uptime_seconds", "tally_agent_uptime_seconds",
                       'tally_job_phase{job_id="7",phase="running"}', "tally_residence_seconds_count"]:
        [sample] = prometheus.query(expression)
        assert float(sample["value"][1]) > 0, (expression, sample)
    # What Prometheus makes of the hostile name is the name.
    [sample] = prometheus.query(f'tally_port_rx_frames_total{{port={json.dumps(HOSTILE)}}}')
    assert float(sample["value"][1]) > 0, sample


def check_page(folder, address, picture):
    browser = shutil.which("chromium")
    if browser is None:
        print("SKIPPED: page: no chromium")
        return
    url = f"http://{address}/"
    run = lambda *arguments: subprocess.run(
        [browser, *BROWSER, f"--user-data-dir={folder}/browser", *arguments, url],
        capture_output=True, text=True, timeout=60, check=True,
    ).stdout
    shot = picture or folder / "page.png"
    dom = run("--virtual-time-budget=9000", "--dump-dom")
    for words in ['class="good">live<', ">running<", "10.84.0.1", "&lt;img src=x onerror=", "<polyline", "joined from"]:
        assert words in dom, f"the page has no `{words}`:\n{dom[-6000:]}"
    assert "<title>Tally switch</title>" in dom and "<img" not in dom, "a name became HTML"
    # So many looks take some seconds, and the chart has something to show.
    run("--virtual-time-budget=300000", f"--screenshot={shot}")
    assert 10_000 < os.path.getsize(shot) < 200_000, os.path.getsize(shot)
    print(f"page: live in {pathlib.Path(browser).name}, names are text")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=pathlib.Path, default=HERE.parent.parent / "target" / "release")
    parser.add_argument("--picture", type=pathlib.Path)
    arguments = parser.parse_args()
    promtool("check", "rules", "tally.rules.yml")
    promtool("test", "rules", "tally.test.yml")
    print("promtool: rules and their tests are good")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="tally-metrics-"))
    try:
        addresses = cluster(folder, arguments.bin.resolve())
        running = lambda: '"phase":"running"' in get(f"http://{addresses['switch']}/report.json")[0]
        until(20, "job 7 runs", running)
        for name, address in addresses.items():
            until(10, name, lambda: get(f"http://{address}/metrics"))
        prometheus = Prometheus(folder, addresses)
        check_formats(addresses)
        are_up = lambda: len(prometheus.query("up == 1")) == len(addresses)
        until(10, "all targets up", are_up)
        time.sleep(5)
        check_expressions(prometheus)
        check_page(folder, addresses["switch"], arguments.picture)
        ended = [name for name, process in processes if process.poll() is not None]
        assert not ended, f"ended early: {ended}"
    except BaseException:
        for log in sorted(folder.glob("*.log")):
            print(f"--- {log.name}\n{log.read_text()[-1500:]}", file=sys.stderr)
        raise
    finally:
        for _, process in reversed(processes):
            process.terminate()
        for _, process in reversed(processes):
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
