//! Devices on independent libraries: Node's `ws` and Python's `websockets`, with their own interpretation of RFC 6455.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::mpsc;

use serde_json::{Value, json};
use whimbrel_client::NewPush;

use super::deliver::Site;
use super::services::skip;

const VARIABLE: &str = "WHIMBREL_TEST_DEVICES";

/// Starts a device. It reports after it has ended.
fn device(site: &Site, library: &str, uid: &str, limit: usize) -> mpsc::Receiver<Value> {
    let address = std::env::var(VARIABLE).unwrap();
    let connect = json!({ "uid": uid, "platform": "web", "device": library }).to_string();
    let escaped: String = connect.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let path =
        format!("/{library}?url=ws%3A%2F%2F{}%2Fv1%2Fconnect&connect={escaped}&limit={limit}", site.server.address());
    let (told, tells) = mpsc::channel();
    std::thread::spawn(move || {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(format!("GET {path} HTTP/1.0\r\nhost: x\r\n\r\n").as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let body = answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default();
        let json = body.find('{').zip(body.rfind('}')).map(|(from, to)| body[from..=to].to_owned());
        let _ = told.send(serde_json::from_str(&json.unwrap_or_default()).unwrap_or(Value::String(answer)));
    });
    tells
}

fn payloads(told: &Value) -> Vec<&str> {
    let frames = told["frames"].as_array().unwrap_or_else(|| panic!("{told}"));
    frames.iter().filter_map(|frame| frame["message"]["payload"].as_str()).collect()
}

#[test]
fn independent_libraries_work_as_devices() {
    if skip(&[VARIABLE]) {
        return;
    }
    let site = Site::start(&[]);
    for library in ["ws", "websockets"] {
        let uid = format!("user-of-{library}");
        // Larger than the shorter forms of a frame's length can express.
        let long = "ü".repeat(40_000);
        site.push_texts(&uid, ["stored", "{\"json\":[1]}", long.as_str()]);
        let told = device(&site, library, &uid, 4);
        site.is_online(&uid, true);
        site.push(&uid, &NewPush::text("live").ephemeral());
        let told = told.recv().unwrap();
        assert_eq!(payloads(&told), ["stored", "{\"json\":[1]}", long.as_str(), "live"], "{library}");
        assert_eq!(told["subprotocol"], json!("whimbrel.v1.json"));
        assert_eq!(told["closed"]["code"], json!(1000), "{library}: the close is answered");
        site.stores(&uid, 0);
        // The next device is the one to be kicked.
        site.is_online(&uid, false);
        let told = device(&site, library, &uid, 9);
        site.is_online(&uid, true);
        site.kick(&uid, "grüße");
        let told = told.recv().unwrap();
        assert_eq!(told["closed"]["code"], json!(4002), "{told}");
        let kicked = told["frames"].as_array().unwrap().iter().any(|frame| frame["kick"]["reason"] == json!("grüße"));
        assert!(kicked, "{told}");
    }
}
