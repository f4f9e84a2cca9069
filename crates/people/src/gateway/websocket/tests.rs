//! The rules of RFC 6455 as a table, the same bytes split at every position, and random input.

use proptest::prelude::*;

use super::frame::apply_mask;
use super::*;

const LIMITS: Limits = Limits { frame_bytes: 64 << 10, message_bytes: 64 << 10 };
const MASK: [u8; 4] = [0x37, 0xfa, 0x21, 0x3d];

/// A message with owned contents, or a failure.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Got {
    Text(String),
    Binary(Vec<u8>),
    Ping(Vec<u8>),
    Pong(Vec<u8>),
    Close(Option<(u16, String)>),
    Failed(u16),
}

fn got(incoming: MessageRef<'_>) -> Got {
    match incoming {
        MessageRef::Text(text) => Got::Text(text.to_owned()),
        MessageRef::Binary(bytes) => Got::Binary(bytes.to_vec()),
        MessageRef::Ping(bytes) => Got::Ping(bytes.to_vec()),
        MessageRef::Pong(bytes) => Got::Pong(bytes.to_vec()),
        MessageRef::Close(said) => Got::Close(said.map(|(code, reason)| (code, reason.to_owned()))),
    }
}

/// Decodes bytes that arrive in these pieces.
fn decode<'a>(role: Role, pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<Got> {
    let mut decoder = Decoder::new(role);
    let mut all = Vec::new();
    for piece in pieces {
        if let Err(violation) = decoder.take(&mut piece.to_vec(), &LIMITS, |incoming| all.push(got(incoming))) {
            all.push(Got::Failed(violation.close_code()));
            break;
        }
    }
    all
}

fn decode_whole(bytes: &[u8]) -> Vec<Got> {
    decode(Role::Server, [bytes])
}

/// A frame as a client sends it, with any first byte.
fn raw(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    encode(&mut out, Opcode::Binary, payload, Some(MASK));
    out[0] = first;
    out
}

const FINAL: u8 = 0x80;
const CONTINUATION: u8 = 0;
const TEXT: u8 = 1;
const BINARY: u8 = 2;
const CLOSE: u8 = FINAL | 8;
const PING: u8 = FINAL | 9;
const PONG: u8 = FINAL | 10;

fn close_payload(code: u16, reason: &[u8]) -> Vec<u8> {
    [&code.to_be_bytes()[..], reason].concat()
}

fn text(text: &str) -> Got {
    Got::Text(text.to_owned())
}

/// Name, frames, expected messages.
type Case = (&'static str, Vec<Vec<u8>>, Vec<Got>);

fn cases() -> Vec<Case> {
    let long = "x".repeat(126);
    let longer = "y".repeat(0xffff);
    let longest = vec![7; 64 << 10];
    let bad_utf8 = [0xce, 0xba, 0xe1, 0xbd, 0xb9, 0xcf, 0x83, 0xce, 0xbc, 0xce, 0xb5, 0xed, 0xa0, 0x80];
    let failed = |code| vec![Got::Failed(code)];
    vec![
        ("an empty text", vec![raw(FINAL | TEXT, b"")], vec![text("")]),
        ("a text with a length in one byte", vec![raw(FINAL | TEXT, b"hello")], vec![text("hello")]),
        ("a text with a length in two bytes", vec![raw(FINAL | TEXT, long.as_bytes())], vec![text(&long)]),
        ("the longest of two bytes", vec![raw(FINAL | TEXT, longer.as_bytes())], vec![text(&longer)]),
        ("a length in eight bytes", vec![raw(FINAL | BINARY, &longest)], vec![Got::Binary(longest.clone())]),
        ("an empty ping", vec![raw(PING, b"")], vec![Got::Ping(vec![])]),
        ("a ping with 125 bytes", vec![raw(PING, &[0xfe; 125])], vec![Got::Ping(vec![0xfe; 125])]),
        ("a ping with 126 bytes", vec![raw(PING, &[0xfe; 126])], failed(1002)),
        ("an unsolicited pong", vec![raw(PONG, b"x")], vec![Got::Pong(b"x".to_vec())]),
        ("a ping in fragments", vec![raw(9, b"x"), raw(FINAL | CONTINUATION, b"y")], failed(1002)),
        ("a reserved bit", vec![raw(FINAL | 0x40 | TEXT, b"x")], failed(1002)),
        ("two reserved bits after a text", vec![raw(FINAL | TEXT, b"a"), raw(FINAL | 0x30 | TEXT, b"x")], {
            vec![text("a"), Got::Failed(1002)]
        }),
        ("a reserved bit of a ping", vec![raw(PING | 0x10, b"x")], failed(1002)),
        ("two fragments", vec![raw(TEXT, b"frag"), raw(FINAL | CONTINUATION, b"ment")], vec![text("fragment")]),
        (
            "empty fragments around one that is not",
            vec![raw(BINARY, b""), raw(CONTINUATION, b"mid"), raw(FINAL | CONTINUATION, b"")],
            vec![Got::Binary(b"mid".to_vec())],
        ),
        ("only empty fragments", vec![raw(TEXT, b""), raw(CONTINUATION, b""), raw(FINAL, b"")], vec![text("")]),
        (
            "control frames between fragments",
            vec![raw(TEXT, b"a"), raw(PING, b"1"), raw(CONTINUATION, b"b"), raw(PONG, b""), raw(FINAL, b"c")],
            vec![Got::Ping(b"1".to_vec()), Got::Pong(vec![]), text("abc")],
        ),
        ("a continuation of nothing", vec![raw(FINAL | CONTINUATION, b"x")], failed(1002)),
        ("a continuation of nothing, not final", vec![raw(CONTINUATION, b"x")], failed(1002)),
        (
            "a continuation after a message has ended",
            vec![raw(TEXT, b"a"), raw(FINAL, b"b"), raw(FINAL, b"c")],
            vec![text("ab"), Got::Failed(1002)],
        ),
        ("a text in the middle of a message", vec![raw(TEXT, b"a"), raw(FINAL | TEXT, b"b")], failed(1002)),
        ("a character over two fragments", vec![raw(TEXT, &[0xce]), raw(FINAL, &[0xba])], vec![text("κ")]),
        ("a text that is not UTF-8", vec![raw(FINAL | TEXT, &bad_utf8)], failed(1007)),
        ("fragments that are not UTF-8", vec![raw(TEXT, &bad_utf8), raw(FINAL, b"")], failed(1007)),
        ("half a character at the end", vec![raw(FINAL | TEXT, &[0xce])], failed(1007)),
        ("half a character at the end of fragments", vec![raw(TEXT, b"a"), raw(FINAL, &[0xce])], failed(1007)),
        ("invalid UTF-8 is found before the message ends", vec![raw(TEXT, &[0xff])], failed(1007)),
        ("a binary need not be UTF-8", vec![raw(FINAL | BINARY, &[0xff])], vec![Got::Binary(vec![0xff])]),
        ("a close with nothing", vec![raw(CLOSE, b"")], vec![Got::Close(None)]),
        ("a close with one byte", vec![raw(CLOSE, b"\x03")], failed(1002)),
        (
            "a close with a reason",
            vec![raw(CLOSE, &close_payload(1000, b"bye"))],
            vec![Got::Close(Some((1000, "bye".into())))],
        ),
        ("a reason with 123 bytes", vec![raw(CLOSE, &close_payload(1000, &[b'x'; 123]))], {
            vec![Got::Close(Some((1000, "x".repeat(123))))]
        }),
        ("a reason with 124 bytes", vec![raw(CLOSE, &close_payload(1000, &[b'x'; 124]))], failed(1002)),
        ("a reason that is not UTF-8", vec![raw(CLOSE, &close_payload(1000, &[0xff]))], failed(1007)),
        ("bytes after a close", vec![raw(CLOSE, b""), raw(FINAL | TEXT, b"x"), vec![0xff]], vec![Got::Close(None)]),
        ("a close between fragments", vec![raw(TEXT, b"a"), raw(CLOSE, b""), raw(FINAL, b"b")], {
            vec![Got::Close(None)]
        }),
        ("a frame over the limit", vec![raw(FINAL | BINARY, &vec![0; (64 << 10) + 1])], failed(1009)),
        (
            "fragments over the limit together",
            vec![raw(BINARY, &longest), raw(FINAL | CONTINUATION, b"x")],
            failed(1009),
        ),
        ("a length with its highest bit", vec![[&[0x82, 0xff][..], &[0x80; 12]].concat()], failed(1002)),
        ("two bytes for a length of one", vec![[&[0x82, 0xfe, 0, 5][..], &[0; 9]].concat()], failed(1002)),
        ("eight bytes for a length of two", vec![[&[0x82, 0xff, 0, 0, 0, 0, 0, 0, 1, 0][..], &[0; 4]].concat()], {
            failed(1002)
        }),
    ]
}

#[test]
fn every_case_decodes_as_the_rfc_requires() {
    for (name, frames, expected) in cases() {
        assert_eq!(decode_whole(&frames.concat()), expected, "{name}");
    }
}

#[test]
fn the_result_does_not_depend_on_where_the_bytes_are_split() {
    for (name, frames, expected) in cases() {
        let bytes = frames.concat();
        if bytes.len() < 1024 {
            for at in 0..=bytes.len() {
                let (left, right) = bytes.split_at(at);
                assert_eq!(decode(Role::Server, [left, right]), expected, "{name}, cut at {at}");
            }
        }
        assert_eq!(decode(Role::Server, bytes.chunks(1)), expected, "{name}, byte by byte");
    }
}

#[test]
fn every_reserved_opcode_is_rejected() {
    for opcode in [3, 4, 5, 6, 7, 11, 12, 13, 14, 15] {
        for first in [FINAL | opcode, opcode] {
            assert_eq!(decode_whole(&raw(first, b"x")), [Got::Failed(1002)], "{first:#x}");
        }
    }
}

#[test]
fn every_close_code_is_accepted_or_rejected_as_the_rfc_requires() {
    let good = [1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014, 3000, 3999, 4000, 4999];
    let bad = [0, 1, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65535];
    for code in good {
        let close = raw(CLOSE, &close_payload(code, b""));
        assert_eq!(decode_whole(&close), [Got::Close(Some((code, String::new())))], "{code}");
    }
    for code in bad {
        assert_eq!(decode_whole(&raw(CLOSE, &close_payload(code, b""))), [Got::Failed(1002)], "{code}");
    }
}

#[test]
fn a_server_accepts_only_masked_frames_and_a_client_only_unmasked_ones() {
    let (mut masked, mut plain) = (Vec::new(), Vec::new());
    encode(&mut masked, Opcode::Text, b"hi", Some(MASK));
    encode(&mut plain, Opcode::Text, b"hi", None);
    assert_eq!(decode(Role::Server, [&masked[..]]), [text("hi")]);
    assert_eq!(decode(Role::Client, [&plain[..]]), [text("hi")]);
    assert_eq!(decode(Role::Server, [&plain[..]]), [Got::Failed(1002)]);
    assert_eq!(decode(Role::Client, [&masked[..]]), [Got::Failed(1002)]);
}

#[test]
fn the_examples_of_the_rfc_decode_as_documented() {
    assert_eq!(decode(Role::Client, [&[0x81, 0x05, 0x48, 0x65, 0x6c, 0x6c, 0x6f][..]]), [text("Hello")]);
    let masked = [0x81, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58];
    assert_eq!(decode_whole(&masked), [text("Hello")]);
    let fragments = [0x01, 0x03, 0x48, 0x65, 0x6c, 0x80, 0x02, 0x6c, 0x6f];
    assert_eq!(decode(Role::Client, [&fragments[..]]), [text("Hello")]);
}

#[test]
fn a_decoder_between_messages_holds_no_memory() {
    let mut decoder = Decoder::new(Role::Server);
    let frames = [raw(TEXT, b"a"), raw(PING, b"1"), raw(FINAL, b"b"), raw(FINAL | TEXT, b"c")].concat();
    for byte in frames {
        decoder.take(&mut [byte], &LIMITS, |_| ()).unwrap();
    }
    assert!(decoder.is_idle());
    assert_eq!(decoder.kept_bytes(), 0);
}

#[test]
fn a_claimed_length_takes_no_memory_until_the_bytes_arrive() {
    let mut decoder = Decoder::new(Role::Server);
    let limits = Limits { frame_bytes: 1 << 30, message_bytes: 1 << 30 };
    let mut head = [0x82, 0xff, 0, 0, 0, 0, 0x3f, 0xff, 0xff, 0xff, 1, 2, 3, 4];
    decoder.take(&mut head, &limits, |_| ()).unwrap();
    assert!(decoder.kept_bytes() < 1024);
}

#[test]
fn a_long_reason_is_cut_between_characters() {
    let mut out = Vec::new();
    encode_close(&mut out, 4000, &"ä".repeat(100), None);
    assert_eq!(decode(Role::Client, [&out[..]]), [Got::Close(Some((4000, "ä".repeat(61))))]);
}

/// Millions of bytes: noise, and valid frames with a few flipped bits. The decoder must not panic or hold more than the limits.
#[test]
fn random_input_neither_panics_nor_exceeds_the_limits() {
    const LIMIT: usize = 1024;
    let limits = Limits { frame_bytes: LIMIT, message_bytes: LIMIT };
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    let (mut fed, mut whole, mut refused) = (0, 0, 0);
    while fed < 4_000_000 {
        let role = if random() % 2 == 0 { Role::Server } else { Role::Client };
        let mut bytes = Vec::new();
        for _ in 0..random() % 8 {
            let payload: Vec<u8> = (0..random() % 200).map(|_| random() as u8 & 0x7f).collect();
            let mask = (role == Role::Server).then(|| (random() as u32).to_ne_bytes());
            let opcodes = [Opcode::Text, Opcode::Binary, Opcode::Continuation, Opcode::Ping, Opcode::Pong];
            let opcode = opcodes[(random() % 5) as usize];
            let start = bytes.len();
            encode_header(&mut bytes, opcode, random() % 3 != 0, payload.len(), mask);
            bytes.extend_from_slice(&payload);
            if let (Some(mask), at) = (mask, bytes.len() - payload.len()) {
                apply_mask(&mut bytes[at..], mask, 0);
            }
            if random() % 8 == 0 {
                let at = start + (random() as usize) % (bytes.len() - start);
                bytes[at] ^= 1 << (random() % 8);
            }
        }
        bytes.extend((0..random() % 64).map(|_| random() as u8));
        let mut decoder = Decoder::new(role);
        let mut rest = &mut bytes[..];
        while !rest.is_empty() {
            let count = (1 + random() as usize % 100).min(rest.len());
            let (piece, more) = rest.split_at_mut(count);
            fed += count;
            let taken = decoder.take(piece, &limits, |_| whole += 1);
            assert!(decoder.kept_bytes() <= 4 * LIMIT, "{} bytes are held", decoder.kept_bytes());
            if taken.is_err() {
                refused += 1;
                break;
            }
            rest = more;
        }
    }
    assert!(whole > 10_000 && refused > 1_000, "{whole} whole, {refused} refused: the noise must cause both");
}

#[derive(Debug, Clone)]
enum Sent {
    Whole(bool, Vec<u8>),
    Fragments(bool, Vec<Vec<u8>>),
    Ping(Vec<u8>),
}

fn payload() -> impl Strategy<Value = Vec<u8>> {
    // Letters of several lengths, so that splits fall within them.
    proptest::collection::vec(prop_oneof![Just('a'), Just('ä'), Just('€'), Just('😀')], 0..90)
        .prop_map(|letters| letters.into_iter().collect::<String>().into_bytes())
}

fn sent() -> impl Strategy<Value = Sent> {
    prop_oneof![
        (any::<bool>(), payload()).prop_map(|(is_text, payload)| Sent::Whole(is_text, payload)),
        (any::<bool>(), payload(), 1..20_usize).prop_map(|(is_text, payload, size)| {
            let pieces: Vec<Vec<u8>> = payload.chunks(size).map(<[u8]>::to_vec).collect();
            Sent::Fragments(is_text, if pieces.is_empty() { vec![Vec::new()] } else { pieces })
        }),
        proptest::collection::vec(any::<u8>(), 0..=125).prop_map(Sent::Ping),
    ]
}

proptest! {
    #[test]
    fn what_is_sent_comes_however_it_is_cut(
        messages in proptest::collection::vec(sent(), 0..8),
        cuts in proptest::collection::vec(1..64_usize, 1..40),
        mask in any::<[u8; 4]>(),
        is_client in any::<bool>(),
    ) {
        let role = if is_client { Role::Client } else { Role::Server };
        let mask = (role == Role::Server).then_some(mask);
        let (mut bytes, mut expected) = (Vec::new(), Vec::new());
        let whole = |is_text, payload: Vec<u8>| {
            if is_text { Got::Text(String::from_utf8(payload).unwrap()) } else { Got::Binary(payload) }
        };
        let kind = |is_text| if is_text { Opcode::Text } else { Opcode::Binary };
        for message in messages {
            match message {
                Sent::Whole(is_text, payload) => {
                    encode(&mut bytes, kind(is_text), &payload, mask);
                    expected.push(whole(is_text, payload));
                }
                Sent::Ping(payload) => {
                    encode(&mut bytes, Opcode::Ping, &payload, mask);
                    expected.push(Got::Ping(payload));
                }
                Sent::Fragments(is_text, pieces) => {
                    for (index, piece) in pieces.iter().enumerate() {
                        let opcode = if index == 0 { kind(is_text) } else { Opcode::Continuation };
                        encode_header(&mut bytes, opcode, index + 1 == pieces.len(), piece.len(), mask);
                        let start = bytes.len();
                        bytes.extend_from_slice(piece);
                        if let Some(mask) = mask {
                            apply_mask(&mut bytes[start..], mask, 0);
                        }
                    }
                    expected.push(whole(is_text, pieces.concat()));
                }
            }
        }
        let mut pieces = Vec::new();
        let mut rest = &bytes[..];
        for cut in cuts.iter().cycle() {
            if rest.is_empty() { break }
            let (piece, more) = rest.split_at((*cut).min(rest.len()));
            pieces.push(piece);
            rest = more;
        }
        prop_assert_eq!(decode(role, pieces), expected);
    }
}
