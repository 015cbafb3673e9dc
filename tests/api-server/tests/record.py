#!/usr/bin/env python3
"""Records the answers of a real kube-apiserver to the requests in requests.json, as answers.json.

    record.py https://127.0.0.1:6443 TOKEN

The cluster must be empty: an API server and etcd, without nodes. The token must be allowed to do everything.
"""
import json, os, ssl, sys, urllib.error, urllib.request

url, token = sys.argv[1:]
here = os.path.dirname(os.path.abspath(__file__))
context = ssl._create_unverified_context()
requests = json.load(open(os.path.join(here, "requests.json")))
values, answers = {}, []
for request in requests:
    method, path = request["request"].split(" ", 1)
    for name, value in values.items():
        path = path.replace("{%s}" % name, value)
    headers = {"Authorization": "Bearer " + token, "Accept": request.get("accept", "application/json")}
    body = request.get("body")
    if body is not None:
        headers["Content-Type"] = "application/merge-patch+json" if method == "PATCH" else "application/json"
    call = urllib.request.Request(url + path, method=method, headers=headers, data=body and json.dumps(body).encode())
    try:
        response = urllib.request.urlopen(call, context=context, timeout=90)
    except urllib.error.HTTPError as error:
        response = error
    text = response.read().decode()
    try:
        if "watch=" in path and response.status == 200:
            answer = {"events": [json.loads(line) for line in text.splitlines()]}
        else:
            answer = {"json": json.loads(text)}
    except ValueError:
        answer = {"text": text}
    metadata = answer.get("json", {}).get("metadata", {})
    for name, key in request.get("keep", {}).items():
        values[name] = metadata[key]
    retry = response.headers.get("Retry-After")
    answers.append({"request": request["request"], "code": response.status, "retry_after": retry, **answer})
    print(response.status, request["request"])
call = urllib.request.Request(url + "/version", headers={"Authorization": "Bearer " + token})
version = urllib.request.urlopen(call, context=context).read()
git_version = json.loads(version)["gitVersion"]


def trim(value):
    if isinstance(value, dict):
        value.pop("managedFields", None)
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else []:
        trim(inner)


trim(answers)
lines = ",\n".join(" " + json.dumps(answer) for answer in answers)
with open(os.path.join(here, "answers.json"), "w") as file:
    file.write('{"server": %s, "answers": [\n%s\n]}\n' % (json.dumps(git_version), lines))
