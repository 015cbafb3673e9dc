//! The answers of the fake API server beside those of a real one.
//!
//! `requests.json` has the requests, and `answers.json` what kube-apiserver answered to them (`record.py` records it).
//! What clients decide by is compared: codes, kinds, reasons, names, and which metadata a list has.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a panic is how a test fails")]

use std::collections::BTreeMap;

use fake_api_server::{ApiServer, Resource};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

#[tokio::test]
async fn answers_are_those_of_a_real_server() {
    let server = ApiServer::start().unwrap();
    // The answers were recorded with etcd 3.4, which sends no progress notifications.
    server.set_faults(Resource::Node, |faults| faults.bookmarks = false);
    let requests: Vec<Value> = serde_json::from_str(include_str!("requests.json")).unwrap();
    let recorded: Value = serde_json::from_str(include_str!("answers.json")).unwrap();
    let recorded = recorded["answers"].as_array().unwrap();
    assert_eq!(requests.len(), recorded.len(), "record the answers again");
    let mut values = BTreeMap::new();
    let mut differences = Vec::new();
    for (request, real) in requests.iter().zip(recorded) {
        assert_eq!(request["request"], real["request"], "record the answers again");
        let fake = send(&server, request, &values).await;
        for (name, field) in request["keep"].as_object().into_iter().flatten() {
            let value = fake["json"]["metadata"][field.as_str().unwrap()].as_str().unwrap_or_default().to_owned();
            values.insert(name.clone(), value);
        }
        let (expected, found) = (shape(real), shape(&fake));
        if request["differs"].is_null() && expected != found {
            differences.push(format!("{}\n    real {expected}\n    fake {found}", request["request"]));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

/// Sends a request on a connection of its own, and returns the answer in the form of `answers.json`.
async fn send(server: &ApiServer, request: &Value, values: &BTreeMap<String, String>) -> Value {
    let (method, mut path) =
        request["request"].as_str().unwrap().split_once(' ').map(|(m, p)| (m, p.to_owned())).unwrap();
    for (name, value) in values {
        path = path.replace(&format!("{{{name}}}"), value);
    }
    let accept = request["accept"].as_str().unwrap_or("application/json");
    let body = request.get("body").map(Value::to_string).unwrap_or_default();
    let head = format!("{method} {path} HTTP/1.1\r\nhost: fake\r\naccept: {accept}\r\nconnection: close");
    let text = format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let mut stream = TcpStream::connect(server.address()).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let header = |name: &str| head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    let body = if header("transfer-encoding").is_some() { joined_chunks(body) } else { body.to_owned() };
    let code: u16 = head.split(' ').nth(1).unwrap().parse().unwrap();
    let mut found = json!({"code": code, "retry_after": header("retry-after")});
    if path.contains("watch=") && code == 200 {
        found["events"] = body.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()).collect();
    } else if let Ok(object) = serde_json::from_str::<Value>(&body) {
        found["json"] = object;
    } else {
        found["text"] = body.into();
    }
    found
}

fn joined_chunks(mut body: &str) -> String {
    let mut joined = String::new();
    while let Some((length, rest)) = body.split_once("\r\n") {
        let length = usize::from_str_radix(length, 16).unwrap();
        joined.push_str(&rest[..length]);
        body = rest[length..].strip_prefix("\r\n").unwrap_or_default();
    }
    joined
}

/// What is compared of an answer.
fn shape(answer: &Value) -> Value {
    let events = answer["events"].as_array();
    json!({
        "code": answer["code"],
        "retry_after": answer["retry_after"],
        "text": answer["text"],
        "json": object_shape(&answer["json"]),
        "events": events.map(|events| events.iter().map(event_shape).collect::<Vec<_>>()),
    })
}

fn event_shape(event: &Value) -> Value {
    json!({"type": event["type"], "object": object_shape(&event["object"])})
}

fn object_shape(object: &Value) -> Value {
    let metadata = &object["metadata"];
    let status = &object["status"];
    let is_set = |value: &Value| value.as_str().is_some_and(|text| !text.is_empty());
    json!({
        "kind": object["kind"],
        "apiVersion": object["apiVersion"],
        "name": metadata["name"],
        "labels": metadata["labels"],
        "annotations": metadata["annotations"],
        "version": is_set(&metadata["resourceVersion"]),
        "continue": is_set(&metadata["continue"]),
        "remaining": metadata["remainingItemCount"],
        "items": object["items"].as_array().map(|items| items.iter().map(object_shape).collect::<Vec<_>>()),
        // Of a `Status`, or of a review.
        "status": if status.is_string() { status.clone() } else { json!([status["authenticated"], status["allowed"]]) },
        "code": object["code"],
        "reason": if object["code"] == 500 { Value::Null } else { object["reason"].clone() },
        "retry": object["details"]["retryAfterSeconds"],
        "series": object["series"]["count"],
    })
}
