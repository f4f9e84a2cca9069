//! One frame: header, mask, payload.

use super::close::shortened_reason;

/// Payload bytes of a control frame, at most.
pub const CONTROL_MAX_BYTES: usize = 125;
/// Bytes of a header, at most: two, eight of length, four of mask.
pub const HEADER_MAX_BYTES: usize = 14;

/// Shorter lengths are in the header's second byte.
const LENGTH_OF_TWO_BYTES: u8 = 126;
const LENGTH_OF_EIGHT_BYTES: u8 = 127;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Opcode {
    Continuation = 0,
    Text = 1,
    Binary = 2,
    Close = 8,
    Ping = 9,
    Pong = 10,
}

impl Opcode {
    fn of(bits: u8) -> Option<Self> {
        match bits {
            0 => Some(Self::Continuation),
            1 => Some(Self::Text),
            2 => Some(Self::Binary),
            8 => Some(Self::Close),
            9 => Some(Self::Ping),
            10 => Some(Self::Pong),
            _ => None,
        }
    }

    pub(super) fn is_control(self) -> bool {
        self as u8 >= 8
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WsHeader {
    pub(super) is_final: bool,
    pub(super) opcode: Opcode,
    pub(super) mask: Option<[u8; 4]>,
    pub(super) length: u64,
    /// Bytes of the header itself.
    pub(super) size: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HeaderRead {
    Whole(WsHeader),
    /// More bytes are needed.
    Partial,
    Wrong(&'static str),
}

/// Parses the header at the start of `bytes`. Reports errors as soon as the available bytes prove them.
pub(super) fn read_header(bytes: &[u8]) -> HeaderRead {
    let Some(&first) = bytes.first() else { return HeaderRead::Partial };
    if first & 0x70 != 0 {
        return HeaderRead::Wrong("a reserved bit is set without an extension");
    }
    let Some(opcode) = Opcode::of(first & 0x0f) else {
        return HeaderRead::Wrong("the opcode is reserved");
    };
    let is_final = first & 0x80 != 0;
    if opcode.is_control() && !is_final {
        return HeaderRead::Wrong("a control frame is fragmented");
    }
    let Some(&second) = bytes.get(1) else { return HeaderRead::Partial };
    let is_masked = second & 0x80 != 0;
    let short = second & 0x7f;
    if opcode.is_control() && short >= LENGTH_OF_TWO_BYTES {
        return HeaderRead::Wrong("a control frame has more than 125 bytes");
    }
    let length_size = match short {
        LENGTH_OF_TWO_BYTES => 2,
        LENGTH_OF_EIGHT_BYTES => 8,
        _ => 0,
    };
    let size = 2 + length_size + if is_masked { 4 } else { 0 };
    let Some(whole) = bytes.get(..size) else { return HeaderRead::Partial };
    let length = match length_size {
        0 => u64::from(short),
        _ => whole[2..2 + length_size].iter().fold(0, |length, byte| length << 8 | u64::from(*byte)),
    };
    if length >> 63 != 0 {
        return HeaderRead::Wrong("the highest bit of a length is set");
    }
    let is_minimal = match length_size {
        2 => length >= u64::from(LENGTH_OF_TWO_BYTES),
        8 => length > u64::from(u16::MAX),
        _ => true,
    };
    if !is_minimal {
        return HeaderRead::Wrong("a length takes more bytes than it needs");
    }
    let mask = is_masked.then(|| [whole[size - 4], whole[size - 3], whole[size - 2], whole[size - 1]]);
    HeaderRead::Whole(WsHeader { is_final, opcode, mask, length, size })
}

/// Masks or unmasks, which is the same operation. `offset` is the position of the first byte within its frame.
pub(super) fn apply_mask(bytes: &mut [u8], mask: [u8; 4], offset: u64) {
    let mut mask = mask;
    mask.rotate_left((offset % 4) as usize);
    let wide = u64::from_ne_bytes([mask[0], mask[1], mask[2], mask[3], mask[0], mask[1], mask[2], mask[3]]);
    let mut chunks = bytes.chunks_exact_mut(8);
    for chunk in &mut chunks {
        let word = u64::from_ne_bytes(chunk.try_into().expect("chunks of eight have eight bytes"));
        chunk.copy_from_slice(&(word ^ wide).to_ne_bytes());
    }
    for (byte, mask) in chunks.into_remainder().iter_mut().zip(mask.iter().cycle()) {
        *byte ^= mask;
    }
}

/// Writes the header of a frame. With a mask, the caller must mask the payload that follows.
pub fn encode_header(out: &mut Vec<u8>, opcode: Opcode, is_final: bool, length: usize, mask: Option<[u8; 4]>) {
    out.push(opcode as u8 | if is_final { 0x80 } else { 0 });
    let mask_bit = if mask.is_some() { 0x80 } else { 0 };
    if length < usize::from(LENGTH_OF_TWO_BYTES) {
        out.push(mask_bit | length as u8);
    } else if let Ok(length) = u16::try_from(length) {
        out.push(mask_bit | LENGTH_OF_TWO_BYTES);
        out.extend_from_slice(&length.to_be_bytes());
    } else {
        out.push(mask_bit | LENGTH_OF_EIGHT_BYTES);
        out.extend_from_slice(&(length as u64).to_be_bytes());
    }
    out.extend_from_slice(mask.as_ref().map_or(&[], |mask| mask.as_slice()));
}

/// Writes a whole message as one frame. Servers must pass no mask, clients must pass one.
pub fn encode(out: &mut Vec<u8>, opcode: Opcode, payload: &[u8], mask: Option<[u8; 4]>) {
    encode_header(out, opcode, true, payload.len(), mask);
    let start = out.len();
    out.extend_from_slice(payload);
    if let Some(mask) = mask {
        apply_mask(&mut out[start..], mask, 0);
    }
}

/// Writes a close frame. A longer reason is cut.
pub fn encode_close(out: &mut Vec<u8>, code: u16, reason: &str, mask: Option<[u8; 4]>) {
    let mut payload = Vec::with_capacity(CONTROL_MAX_BYTES);
    payload.extend_from_slice(&code.to_be_bytes());
    payload.extend_from_slice(shortened_reason(reason).as_bytes());
    encode(out, Opcode::Close, &payload, mask);
}
