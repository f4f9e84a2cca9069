//! Decodes bytes into messages.
//!
//! A frame that arrives whole is unmasked in place and never copied. Only incomplete input is kept: part of a header, of a frame, or of a
//! fragmented message. Memory grows with the received bytes, not with the length in a header, and a length beyond the limits is rejected
//! before any of its bytes are taken.

use super::close::is_valid_close_code;
use super::frame::{CONTROL_MAX_BYTES, HEADER_MAX_BYTES, HeaderRead, Opcode, WsHeader, apply_mask, read_header};

/// The side that decodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Every frame that it receives must be masked.
    Server,
    /// No frame that it receives may be masked.
    Client,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    pub frame_bytes: usize,
    /// Of all fragments of a message together.
    pub message_bytes: usize,
}

/// A complete message.
#[derive(Debug, PartialEq, Eq)]
pub enum MessageRef<'a> {
    Text(&'a str),
    Binary(&'a [u8]),
    Ping(&'a [u8]),
    Pong(&'a [u8]),
    /// The last message. Further bytes are ignored.
    Close(Option<(u16, &'a str)>),
}

/// A violation of the protocol. The decoder ignores all further bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WsViolation {
    #[error("{0}")]
    Protocol(&'static str),
    #[error("a text message is not UTF-8")]
    NotUtf8,
    #[error("a {what} has more than {limit} bytes")]
    TooLarge { what: &'static str, limit: usize },
}

impl WsViolation {
    /// The close code of RFC 6455 for it.
    pub fn close_code(self) -> u16 {
        match self {
            Self::Protocol(_) => 1002,
            Self::NotUtf8 => 1007,
            Self::TooLarge { .. } => 1009,
        }
    }
}

#[derive(Debug)]
pub struct Decoder {
    role: Role,
    is_over: bool,
    /// Present only while input is incomplete.
    partial: Option<Box<PartialInput>>,
}

#[derive(Debug, Default)]
struct PartialInput {
    /// The received part of a header.
    head: [u8; HEADER_MAX_BYTES],
    head_len: usize,
    /// The frame whose payload is incomplete, and the received bytes of it.
    frame: Option<WsHeader>,
    taken: u64,
    /// The received payload of a control frame, which may arrive between the fragments of a message.
    control: Vec<u8>,
    /// The received payload of the message.
    message: Vec<u8>,
    /// The kind of the message, from its first fragment on.
    kind: Option<MessageKind>,
    /// Up to here the message is valid UTF-8.
    checked: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MessageKind {
    Text,
    Binary,
}

impl Decoder {
    pub fn new(role: Role) -> Self {
        Self { role, is_over: false, partial: None }
    }

    /// Whether it holds no incomplete input.
    pub fn is_idle(&self) -> bool {
        self.partial.is_none()
    }

    /// Bytes of memory that it holds.
    pub fn kept_bytes(&self) -> usize {
        let kept = |partial: &PartialInput| {
            size_of::<PartialInput>() + partial.control.capacity() + partial.message.capacity()
        };
        self.partial.as_deref().map_or(0, kept)
    }

    /// Takes all bytes and passes complete messages to `sink`, in order. Unmasks in place.
    pub fn take(
        &mut self,
        bytes: &mut [u8],
        limits: &Limits,
        mut sink: impl FnMut(MessageRef<'_>),
    ) -> Result<(), WsViolation> {
        let mut rest = bytes;
        while !rest.is_empty() && !self.is_over {
            let taken = self.take_some(rest, limits, &mut sink).inspect_err(|_| {
                self.is_over = true;
                self.partial = None;
            })?;
            rest = &mut rest[taken..];
        }
        Ok(())
    }

    /// Takes some of the bytes, at least one.
    fn take_some(
        &mut self,
        bytes: &mut [u8],
        limits: &Limits,
        sink: &mut impl FnMut(MessageRef<'_>),
    ) -> Result<usize, WsViolation> {
        if self.partial.is_none() {
            match read_header(bytes) {
                HeaderRead::Wrong(why) => return Err(WsViolation::Protocol(why)),
                HeaderRead::Whole(header) => {
                    self.validate(&header, limits)?;
                    if let Some(end) = whole_frame_end(&header, bytes.len()) {
                        self.take_whole(&header, &mut bytes[header.size..end], sink)?;
                        return Ok(end);
                    }
                    self.partial.get_or_insert_default().begin(header);
                    return Ok(header.size);
                }
                HeaderRead::Partial => {}
            }
        }
        let has_frame = self.partial.as_deref().is_some_and(|partial| partial.frame.is_some());
        if has_frame { self.take_payload(bytes, sink) } else { self.take_head(bytes, limits, sink) }
    }

    /// Takes a whole frame from the input. Copies only the first fragment of a message.
    fn take_whole(
        &mut self,
        header: &WsHeader,
        payload: &mut [u8],
        sink: &mut impl FnMut(MessageRef<'_>),
    ) -> Result<(), WsViolation> {
        if let Some(mask) = header.mask {
            apply_mask(payload, mask, 0);
        }
        match header.opcode {
            Opcode::Text if header.is_final => {
                sink(MessageRef::Text(std::str::from_utf8(payload).map_err(|_| WsViolation::NotUtf8)?));
            }
            Opcode::Binary if header.is_final => sink(MessageRef::Binary(payload)),
            Opcode::Close | Opcode::Ping | Opcode::Pong => self.take_control(header.opcode, payload, sink)?,
            Opcode::Text | Opcode::Binary | Opcode::Continuation => {
                let partial = self.partial.get_or_insert_default();
                partial.begin(WsHeader { mask: None, ..*header });
                partial.message.extend_from_slice(payload);
                partial.check_text(false)?;
                partial.frame = None;
            }
        }
        Ok(())
    }

    /// Takes one byte of a header that arrives in pieces.
    fn take_head(
        &mut self,
        bytes: &[u8],
        limits: &Limits,
        sink: &mut impl FnMut(MessageRef<'_>),
    ) -> Result<usize, WsViolation> {
        let partial = self.partial.get_or_insert_default();
        partial.head[partial.head_len] = bytes[0];
        partial.head_len += 1;
        match read_header(&partial.head[..partial.head_len]) {
            HeaderRead::Wrong(why) => Err(WsViolation::Protocol(why)),
            HeaderRead::Partial => Ok(1),
            HeaderRead::Whole(header) => {
                partial.head_len = 0;
                self.validate(&header, limits)?;
                if let Some(partial) = &mut self.partial {
                    partial.begin(header);
                }
                if header.length == 0 {
                    self.end_frame(&header, sink)?;
                }
                Ok(1)
            }
        }
    }

    /// Checks whether a frame with that header is allowed now.
    fn validate(&self, header: &WsHeader, limits: &Limits) -> Result<(), WsViolation> {
        match (self.role, header.mask) {
            (Role::Server, None) => return Err(WsViolation::Protocol("a frame of a client is not masked")),
            (Role::Client, Some(_)) => return Err(WsViolation::Protocol("a frame of a server is masked")),
            _ => {}
        }
        if header.opcode.is_control() {
            return Ok(());
        }
        let (has_begun, so_far) = match self.partial.as_deref() {
            Some(partial) => (partial.kind.is_some(), partial.message.len() as u64),
            None => (false, 0),
        };
        match header.opcode {
            Opcode::Continuation if !has_begun => {
                return Err(WsViolation::Protocol("a continuation without a message"));
            }
            Opcode::Text | Opcode::Binary if has_begun => {
                return Err(WsViolation::Protocol("a message starts within a fragmented message"));
            }
            _ => {}
        }
        if header.length > limits.frame_bytes as u64 {
            return Err(WsViolation::TooLarge { what: "frame", limit: limits.frame_bytes });
        }
        if so_far.saturating_add(header.length) > limits.message_bytes as u64 {
            return Err(WsViolation::TooLarge { what: "message", limit: limits.message_bytes });
        }
        Ok(())
    }

    fn take_payload(&mut self, bytes: &mut [u8], sink: &mut impl FnMut(MessageRef<'_>)) -> Result<usize, WsViolation> {
        let Some(partial) = &mut self.partial else { return Ok(bytes.len()) };
        let Some(header) = partial.frame else { return Ok(bytes.len()) };
        let missing = header.length - partial.taken;
        let count = usize::try_from(missing).map_or(bytes.len(), |missing| missing.min(bytes.len()));
        let piece = &mut bytes[..count];
        if let Some(mask) = header.mask {
            apply_mask(piece, mask, partial.taken);
        }
        partial.taken += count as u64;
        if header.opcode.is_control() {
            partial.control.extend_from_slice(piece);
        } else {
            partial.message.extend_from_slice(piece);
            partial.check_text(false)?;
        }
        if partial.taken == header.length {
            self.end_frame(&header, sink)?;
        }
        Ok(count)
    }

    /// Completes a frame that arrived in pieces.
    fn end_frame(&mut self, header: &WsHeader, sink: &mut impl FnMut(MessageRef<'_>)) -> Result<(), WsViolation> {
        let Some(mut partial) = self.partial.take() else { return Ok(()) };
        partial.frame = None;
        if header.opcode.is_control() {
            let control = std::mem::take(&mut partial.control);
            // The interrupted message continues afterwards.
            if partial.kind.is_some() {
                self.partial = Some(partial);
            }
            return self.take_control(header.opcode, &control, sink);
        }
        if !header.is_final {
            self.partial = Some(partial);
            return Ok(());
        }
        partial.check_text(true)?;
        match partial.kind {
            Some(MessageKind::Text) => {
                sink(MessageRef::Text(std::str::from_utf8(&partial.message).map_err(|_| WsViolation::NotUtf8)?));
            }
            _ => sink(MessageRef::Binary(&partial.message)),
        }
        Ok(())
    }

    fn take_control(
        &mut self,
        opcode: Opcode,
        payload: &[u8],
        sink: &mut impl FnMut(MessageRef<'_>),
    ) -> Result<(), WsViolation> {
        debug_assert!(payload.len() <= CONTROL_MAX_BYTES);
        match opcode {
            Opcode::Ping => sink(MessageRef::Ping(payload)),
            Opcode::Pong => sink(MessageRef::Pong(payload)),
            _ => {
                let said = read_close(payload)?;
                self.is_over = true;
                self.partial = None;
                sink(MessageRef::Close(said));
            }
        }
        Ok(())
    }
}

impl PartialInput {
    fn begin(&mut self, header: WsHeader) {
        match header.opcode {
            Opcode::Text => self.kind = Some(MessageKind::Text),
            Opcode::Binary => self.kind = Some(MessageKind::Binary),
            _ => {}
        }
        (self.frame, self.taken, self.head_len) = (Some(header), 0, 0);
    }

    /// Validates the new bytes of a text, so that invalid UTF-8 is rejected at once.
    fn check_text(&mut self, is_last: bool) -> Result<(), WsViolation> {
        if self.kind != Some(MessageKind::Text) {
            return Ok(());
        }
        match std::str::from_utf8(&self.message[self.checked..]) {
            Ok(_) => self.checked = self.message.len(),
            // The text ends within a character, which the next piece may complete.
            Err(error) if error.error_len().is_none() && !is_last => self.checked += error.valid_up_to(),
            Err(_) => return Err(WsViolation::NotUtf8),
        }
        Ok(())
    }
}

fn whole_frame_end(header: &WsHeader, available: usize) -> Option<usize> {
    let end = usize::try_from(header.length).ok()?.checked_add(header.size)?;
    (end <= available).then_some(end)
}

fn read_close(payload: &[u8]) -> Result<Option<(u16, &str)>, WsViolation> {
    let (code, reason) = match payload {
        [] => return Ok(None),
        [_] => return Err(WsViolation::Protocol("a close frame has an incomplete code")),
        [high, low, reason @ ..] => (u16::from_be_bytes([*high, *low]), reason),
    };
    if !is_valid_close_code(code) {
        return Err(WsViolation::Protocol("a close frame has an invalid code"));
    }
    Ok(Some((code, std::str::from_utf8(reason).map_err(|_| WsViolation::NotUtf8)?)))
}
