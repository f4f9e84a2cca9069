//! Authentication by token, and the expiry of tokens.

use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite;
use tungstenite::client::IntoClientRequest as _;
use whimbrel_model::Clock as _;
use whimbrel_model::ports::ToCarrier;
use whimbrel_people::gateway::GatewaySettings;
use whimbrel_people::gateway::tokens::{ClientKey, TokenSettings};

use crate::scene::{Device, Scene, soon};

const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";

pub fn with_secret() -> TokenSettings {
    let keys = vec![(None, ClientKey::Secret(SECRET.to_vec()))];
    TokenSettings { keys, leeway: std::time::Duration::ZERO, ..TokenSettings::default() }
}

/// A token that expires in so many seconds.
pub fn token(sub: &str, seconds: f64) -> String {
    let now = whimbrel_model::SystemClock.now().as_millis() as f64 / 1000.0;
    signed(&json!({"sub": sub, "exp": now + seconds}))
}

/// A token for one platform only.
pub fn bound_token(sub: &str, platform: &str) -> String {
    signed(&json!({"sub": sub, "exp": 4_000_000_000_u64, "plat": platform}))
}

fn signed(claims: &Value) -> String {
    encode(&Header::new(Algorithm::HS256), claims, &EncodingKey::from_secret(SECRET)).unwrap()
}

async fn scene() -> Scene {
    Scene::with(GatewaySettings::default(), &with_secret()).await
}

async fn connecting(scene: &Scene, connect: Value) -> Device {
    let mut device = scene.stranger().await;
    device.say(json!({ "connect": connect })).await;
    device
}

#[tokio::test]
async fn a_token_identifies_the_user() {
    let mut scene = scene().await;
    let _device = connecting(&scene, json!({"token": token("u9", 60.0), "platform": "ios"})).await;
    let ToCarrier::Arrive(arrival) = scene.told().await else { panic!("no arrival") };
    assert_eq!((arrival.uid.as_str(), arrival.platform.as_str()), ("u9", "ios"));
}

#[tokio::test]
async fn malformed_expired_foreign_and_missing_tokens_are_rejected() {
    let scene = scene().await;
    let bound = bound_token("u1", "ios");
    let foreign = encode(&Header::default(), &json!({"sub": "u1"}), &EncodingKey::from_secret(&[1; 32])).unwrap();
    let cases = [
        (json!({"token": "nonsense", "platform": "web"}), 4300),
        (json!({"token": token("u1", -60.0), "platform": "web"}), 4301),
        (json!({"token": foreign, "platform": "web"}), 4300),
        (json!({"uid": "u1", "platform": "web"}), 4300),
        (json!({"token": bound, "platform": "web"}), 4300),
        (json!({"token": token("u1", 60.0), "uid": "u2", "platform": "web"}), 4300),
        (json!({"token": signed(&json!({"sub": "u1"})), "platform": "web"}), 4300),
    ];
    for (connect, code) in cases {
        let mut device = connecting(&scene, connect.clone()).await;
        assert_eq!(device.is_closed().await.0, code, "{connect}");
    }
}

#[tokio::test]
async fn a_session_ends_with_its_token() {
    let mut scene = scene().await;
    let mut device = connecting(&scene, json!({"token": token("u1", 1.0), "platform": "web"})).await;
    scene.admit_next(0).await;
    assert_eq!(device.is_closed().await.0, 4301);
    assert!(matches!(scene.told().await, ToCarrier::Gone { .. }));
}

#[tokio::test]
async fn a_refresh_extends_the_session_and_a_token_of_another_user_ends_it() {
    let mut scene = scene().await;
    let mut device = connecting(&scene, json!({"token": token("u1", 1.5), "platform": "web"})).await;
    scene.admit_next(0).await;
    device.hears().await;
    device.say(json!({"refresh": {"token": token("u1", 600.0)}})).await;
    // A second session, whose token expires later than the first token of the first session.
    let mut other = connecting(&scene, json!({"token": token("u3", 2.0), "platform": "web"})).await;
    scene.admit_next(0).await;
    assert_eq!(other.is_closed().await.0, 4301);
    device.say(json!({"ping": {}})).await;
    assert_eq!(device.hears().await, json!({"pong": {}}));
    device.say(json!({"refresh": {"token": token("u2", 600.0)}})).await;
    assert_eq!(device.is_closed().await.0, 4300);
}

#[tokio::test]
async fn without_keys_a_uid_is_accepted_from_this_machine_only() {
    let scene = Scene::start().await;
    let mut request = format!("ws://{}/v1/connect", scene.address).into_client_request().unwrap();
    request.headers_mut().insert("x-forwarded-for", "203.0.113.9".parse().unwrap());
    let stream = tokio::net::TcpStream::connect(scene.address).await.unwrap();
    let (mut socket, _) = soon(tokio_tungstenite::client_async(request, stream)).await.unwrap();
    use futures_util::{SinkExt as _, StreamExt as _};
    let connect = json!({"connect": {"uid": "u1", "platform": "web"}}).to_string();
    socket.send(tungstenite::Message::text(connect)).await.unwrap();
    let Some(Ok(tungstenite::Message::Close(Some(close)))) = soon(socket.next()).await else { panic!("not closed") };
    assert_eq!(u16::from(close.code), 4300);
    assert!(close.reason.contains("client keys"), "{}", close.reason);
}
