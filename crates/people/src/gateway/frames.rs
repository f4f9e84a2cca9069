//! The frames between a device and its gateway, in JSON and protobuf, and their framing for each transport.
//!
//! The part of a message that is the same for every device is encoded once and shared. A delivery adds its own few members in front.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use prost::Message as _;
use serde::Deserialize;
use serde_json::json;
use whimbrel_model::people::SessionId;
use whimbrel_model::ports::{DeliveryPosition, OutMessage};

use super::websocket::{Opcode, encode, encode_close, encode_header};
use whimbrel_api::protocol::{ClientFrame, ServerFrame, client_frame, server_frame};

pub(super) const JSON_SUBPROTOCOL: &str = "whimbrel.v1.json";
pub(super) const PROTO_SUBPROTOCOL: &str = "whimbrel.v1.proto";

/// Bytes of an epoch that a device sends, at most. Real epochs are shorter.
pub(super) const EPOCH_MAX_BYTES: usize = 128;
/// The tag of a message in a `ServerFrame`: field 2, with a length.
const MESSAGE_TAG: u8 = 2 << 3 | 2;

/// The encoding of frames and their transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    SocketJson,
    SocketProto,
    EventStream,
    /// Each frame has a length prefix of four bytes.
    Grpc,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum InboundFrame {
    Connect(Connect),
    Ack(u64),
    Ping {},
    Pong {},
    Refresh { token: String },
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Default)]
pub(super) struct Connect {
    pub(super) token: Option<String>,
    pub(super) uid: Option<String>,
    pub(super) platform: Option<String>,
    #[serde(default)]
    pub(super) device: String,
    pub(super) resume: Option<ResumeRequest>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct ResumeRequest {
    pub(super) epoch: String,
    pub(super) cursor: u64,
}

/// A position in an inbox as the `id` of an event, `<epoch>:<number>`. A reconnecting browser sends the last one by itself, and only that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EventId<'a> {
    pub(super) epoch: &'a str,
    pub(super) seq: u64,
}

impl EventId<'_> {
    /// The position in a browser's last event id. A malformed id becomes an empty epoch, so that the session starts without resuming. It is
    /// not an error, because a page cannot make its browser drop the id.
    pub(super) fn resume(id: &str) -> ResumeRequest {
        let place = id.rsplit_once(':').filter(|(epoch, _)| epoch.len() <= EPOCH_MAX_BYTES);
        let place = place.and_then(|(epoch, seq)| Some((epoch.to_owned(), seq.parse().ok()?)));
        let (epoch, cursor) = place.unwrap_or_default();
        ResumeRequest { epoch, cursor }
    }
}

impl InboundFrame {
    pub(super) fn of_json(text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    pub(super) fn of_proto(bytes: &[u8]) -> Result<Self, String> {
        Self::of_frame(ClientFrame::decode(bytes).map_err(|error| error.to_string())?)
    }

    pub(super) fn of_frame(frame: ClientFrame) -> Result<Self, String> {
        use client_frame::Frame;
        Ok(match frame.frame.ok_or("the frame is empty or of an unknown kind")? {
            Frame::Connect(connect) => Self::Connect(Connect {
                token: connect.token,
                uid: connect.uid,
                platform: connect.platform,
                device: connect.device,
                resume: connect.resume.map(|asked| ResumeRequest { epoch: asked.epoch, cursor: asked.cursor }),
            }),
            Frame::Ack(upto) => Self::Ack(upto),
            Frame::Ping(_) => Self::Ping {},
            Frame::Pong(_) => Self::Pong {},
            Frame::Refresh(refresh) => Self::Refresh { token: refresh.token },
        })
    }
}

/// A frame to a device, except messages.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum OutboundFrame<'a> {
    Connected { session: SessionId, epoch: &'a str, head: u64, resumed: bool, why: Option<&'a str>, ping_ms: u32 },
    Ping,
    Pong,
    Truncated { from: u64, to: u64 },
    Lost { count: u64 },
    Kick { code: &'static str, reason: &'a str },
    Goaway { after_ms: u64 },
    Close { code: u16, reason: &'a str },
}

impl OutboundFrame<'_> {
    /// `mark`: the position from which a device resumes after this frame, if it changes.
    pub(super) fn encode(&self, out: &mut Vec<u8>, format: Format, mark: Option<EventId<'_>>) {
        match (format, self) {
            // The WebSocket ping, which browsers answer by themselves.
            (Format::SocketJson | Format::SocketProto, OutboundFrame::Ping) => encode(out, Opcode::Ping, b"", None),
            (Format::SocketJson | Format::SocketProto, OutboundFrame::Close { code, reason }) => {
                encode_close(out, *code, reason, None);
            }
            (Format::EventStream, OutboundFrame::Ping) => out.extend_from_slice(b": ping\n\n"),
            (Format::SocketJson | Format::EventStream, _) => wrap(out, format, mark, &[self.json().as_bytes()]),
            (Format::SocketProto | Format::Grpc, _) => wrap(out, format, mark, &[&self.proto().encode_to_vec()]),
        }
    }

    fn json(&self) -> String {
        let value = match self {
            OutboundFrame::Connected { session, epoch, head, resumed, why, ping_ms } => {
                let session = session.to_string();
                let mut said =
                    json!({"session": session, "epoch": epoch, "head": head, "resumed": resumed, "ping": ping_ms});
                if let Some(why) = why {
                    said["why"] = (*why).into();
                }
                json!({ "connected": said })
            }
            OutboundFrame::Ping => json!({"ping": {}}),
            OutboundFrame::Pong => json!({"pong": {}}),
            OutboundFrame::Truncated { from, to } => json!({"truncated": {"from": from, "to": to}}),
            OutboundFrame::Lost { count } => json!({"lost": {"count": count}}),
            OutboundFrame::Kick { code, reason } => json!({"kick": {"code": code, "reason": reason}}),
            OutboundFrame::Goaway { after_ms } => json!({"goaway": {"after_ms": after_ms}}),
            OutboundFrame::Close { code, reason } => json!({"close": {"code": code, "reason": reason}}),
        };
        value.to_string()
    }

    fn proto(&self) -> ServerFrame {
        use server_frame::{Close, Connected, Frame, Goaway, Kick, Lost, Ping, Pong, Truncated};
        let frame = match *self {
            OutboundFrame::Connected { session, epoch, head, resumed, why, ping_ms } => Frame::Connected(Connected {
                session: session.to_string(),
                epoch: epoch.to_owned(),
                head,
                resumed,
                why: why.map(str::to_owned),
                ping: ping_ms,
            }),
            OutboundFrame::Ping => Frame::Ping(Ping {}),
            OutboundFrame::Pong => Frame::Pong(Pong {}),
            OutboundFrame::Truncated { from, to } => Frame::Truncated(Truncated { from, to }),
            OutboundFrame::Lost { count } => Frame::Lost(Lost { count }),
            OutboundFrame::Kick { code, reason } => {
                Frame::Kick(Kick { code: code.to_owned(), reason: reason.to_owned() })
            }
            OutboundFrame::Goaway { after_ms } => Frame::Goaway(Goaway { after_ms }),
            OutboundFrame::Close { code, reason } => {
                Frame::Close(Close { code: u32::from(code), reason: reason.to_owned() })
            }
        };
        ServerFrame { frame: Some(frame) }
    }
}

/// A lower bound of the message's encoded size: its shared part.
pub(super) fn message_bytes(format: Format, message: &OutMessage) -> usize {
    match format {
        Format::SocketJson | Format::EventStream => json_tail(message).len(),
        Format::SocketProto | Format::Grpc => proto_tail(message).len(),
    }
}

/// Encodes a message for one device, whose inbox has that epoch.
pub(super) fn encode_message(
    out: &mut Vec<u8>,
    format: Format,
    epoch: &str,
    place: DeliveryPosition,
    message: &OutMessage,
) {
    let mark = match place {
        DeliveryPosition::Stored { seq, .. } => Some(EventId { epoch, seq }),
        DeliveryPosition::Ephemeral { .. } => None,
    };
    match format {
        Format::SocketJson | Format::EventStream => {
            // Room for two numbers of 20 digits, so that the text does not grow.
            let mut own = String::with_capacity(96);
            let _ = match place {
                DeliveryPosition::Stored { seq, prev } => {
                    write!(own, r#"{{"message":{{"seq":{seq},"prev":{prev},"stored":true,"#)
                }
                DeliveryPosition::Ephemeral { .. } => write!(own, r#"{{"message":{{"stored":false,"#),
            };
            wrap(out, format, mark, &[own.as_bytes(), json_tail(message)]);
        }
        Format::SocketProto | Format::Grpc => {
            let own = match place {
                DeliveryPosition::Stored { seq, prev } => {
                    server_frame::Message { seq: Some(seq), prev: Some(prev), stored: true, ..Default::default() }
                }
                DeliveryPosition::Ephemeral { .. } => server_frame::Message::default(),
            };
            let own = own.encode_to_vec();
            let tail = proto_tail(message);
            let mut head = vec![MESSAGE_TAG];
            prost::encoding::encode_varint((own.len() + tail.len()) as u64, &mut head);
            wrap(out, format, mark, &[&head, &own, tail]);
        }
    }
}

fn json_tail(message: &OutMessage) -> &Bytes {
    message.json.get_or_init(|| {
        let text = |value: &str| serde_json::Value::from(value).to_string();
        let (name, payload) = match std::str::from_utf8(&message.payload) {
            Ok(payload) => ("payload", text(payload)),
            Err(_) => ("payload_base64", text(&STANDARD.encode(&message.payload))),
        };
        let content_type = message.content_type.as_deref();
        let content_type = content_type.map_or(String::new(), |kind| format!(r#""content_type":{},"#, text(kind)));
        let (id, sent_at) = (text(&message.id), message.sent_at);
        format!(r#""id":{id},"{name}":{payload},{content_type}"sent_at":"{sent_at}"}}}}"#).into()
    })
}

fn proto_tail(message: &OutMessage) -> &Bytes {
    message.proto.get_or_init(|| {
        let shared = server_frame::Message {
            id: message.id.clone().into_string(),
            payload: message.payload.clone(),
            content_type: message.content_type.clone().map(String::from),
            sent_at: message.sent_at.to_string(),
            ..Default::default()
        };
        shared.encode_to_vec().into()
    })
}

fn wrap(out: &mut Vec<u8>, format: Format, mark: Option<EventId<'_>>, parts: &[&[u8]]) {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    out.reserve(length + 32);
    match format {
        Format::SocketJson => encode_header(out, Opcode::Text, true, length, None),
        Format::SocketProto => encode_header(out, Opcode::Binary, true, length, None),
        Format::EventStream => {
            if let Some(EventId { epoch, seq }) = mark {
                out.extend_from_slice(format!("id: {epoch}:{seq}\n").as_bytes());
            }
            out.extend_from_slice(b"data: ");
        }
        Format::Grpc => out.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes()),
    }
    parts.iter().for_each(|part| out.extend_from_slice(part));
    if format == Format::EventStream {
        out.extend_from_slice(b"\n\n");
    }
}

#[cfg(test)]
mod tests {
    use whimbrel_model::Timestamp;

    use super::*;

    fn message(payload: &'static [u8]) -> OutMessage {
        OutMessage {
            id: "m\"1".into(),
            payload: payload.into(),
            content_type: Some("text/plain".into()),
            sent_at: Timestamp::from_millis(0),
            ..OutMessage::default()
        }
    }

    fn event(place: DeliveryPosition, payload: &'static [u8]) -> String {
        let mut out = Vec::new();
        encode_message(&mut out, Format::EventStream, "e-1", place, &message(payload));
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn frames_of_a_device_are_parsed_as_documented() {
        let connect = r#"{"connect":{"token":"t","platform":"web","device":"d1","resume":{"epoch":"e","cursor":41}}}"#;
        let resume = Some(ResumeRequest { epoch: "e".into(), cursor: 41 });
        let expected =
            Connect { token: Some("t".into()), platform: Some("web".into()), device: "d1".into(), resume, uid: None };
        assert_eq!(InboundFrame::of_json(connect), Ok(InboundFrame::Connect(expected)));
        assert_eq!(InboundFrame::of_json(r#"{"ack":42}"#), Ok(InboundFrame::Ack(42)));
        assert_eq!(InboundFrame::of_json(r#"{"ping":{}}"#), Ok(InboundFrame::Ping {}));
        assert_eq!(
            InboundFrame::of_json(r#"{"refresh":{"token":"t"}}"#),
            Ok(InboundFrame::Refresh { token: "t".into() })
        );
        for bad in ["", "{}", r#"{"ack":-1}"#, r#"{"ack":1,"ping":{}}"#, r#"{"dance":{}}"#, "[]", r#"{"ack":1.5}"#] {
            assert!(InboundFrame::of_json(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_stored_message_has_its_numbers_and_an_ephemeral_one_has_none() {
        let stored = event(DeliveryPosition::Stored { seq: 42, prev: 40 }, b"hi \"you\"\n");
        let shared = r#""id":"m\"1","payload":"hi \"you\"\n","content_type":"text/plain","sent_at":"1970-01-01T00:00:00.000Z"}}"#;
        assert_eq!(
            stored,
            format!("id: e-1:42\ndata: {{\"message\":{{\"seq\":42,\"prev\":40,\"stored\":true,{shared}\n\n")
        );
        let ephemeral = event(DeliveryPosition::Ephemeral { place: 7 }, b"hi \"you\"\n");
        assert_eq!(ephemeral, format!("data: {{\"message\":{{\"stored\":false,{shared}\n\n"));
    }

    #[test]
    fn an_event_id_is_a_position_and_a_malformed_one_has_no_epoch() {
        let resume = |epoch: &str, cursor| ResumeRequest { epoch: epoch.to_owned(), cursor };
        assert_eq!(EventId::resume("1-19a-ff:42"), resume("1-19a-ff", 42));
        let long = format!("{}:42", "e".repeat(EPOCH_MAX_BYTES + 1));
        for strange in ["42", "", "e:", ":", "e:-1", "e:x", "e:99999999999999999999", "1-19a-ff", &long] {
            assert_eq!(EventId::resume(strange), resume("", 0), "{strange}");
        }
    }

    #[test]
    fn a_payload_that_is_not_utf8_is_in_base64() {
        assert!(event(DeliveryPosition::Ephemeral { place: 1 }, &[0xff, 0]).contains(r#""payload_base64":"/wA=""#));
    }

    #[test]
    fn the_shared_and_the_own_part_form_one_protobuf_message() {
        let mut out = Vec::new();
        let place = DeliveryPosition::Stored { seq: 300, prev: 1 };
        encode_message(&mut out, Format::Grpc, "e", place, &message(b"\xff"));
        let frame = ServerFrame::decode(&out[4..]).unwrap();
        let Some(server_frame::Frame::Message(read)) = frame.frame else { panic!("{frame:?}") };
        assert_eq!((read.seq, read.prev, read.stored, &read.payload[..]), (Some(300), Some(1), true, &b"\xff"[..]));
        assert_eq!((&*read.id, read.content_type.as_deref()), ("m\"1", Some("text/plain")));
        assert_eq!(out.len() - 4, u32::from_be_bytes(out[..4].try_into().unwrap()) as usize);
    }

    #[test]
    fn the_shared_part_is_encoded_once() {
        let message = message(b"x");
        let place = DeliveryPosition::Ephemeral { place: 1 };
        encode_message(&mut Vec::new(), Format::SocketJson, "e", place, &message);
        let first = message.json.get().unwrap().as_ptr();
        encode_message(&mut Vec::new(), Format::EventStream, "e", place, &message);
        assert_eq!(message.json.get().unwrap().as_ptr(), first);
        assert!(message.proto.get().is_none());
    }
}
