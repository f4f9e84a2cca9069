//! Parses server-sent events: chunks in, events out. It buffers at most one incomplete event, up to [`EVENT_BYTES_MAX`], and does no I/O.

/// The maximum size of an incomplete event: higher than any message in base64 that a server's limits allow.
pub const EVENT_BYTES_MAX: usize = 64 << 20;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SseEvent {
    /// Empty: the default kind, `message`.
    pub kind: String,
    pub id: Option<String>,
    pub data: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the event exceeds {EVENT_BYTES_MAX} bytes")]
pub struct EventTooLarge;

#[derive(Debug, Default)]
pub struct EventReader {
    line: Vec<u8>,
    event: SseEvent,
    has_data: bool,
    after_carriage_return: bool,
}

impl EventReader {
    /// Parses the next bytes, and adds the events that they complete to `events`.
    pub fn take(&mut self, chunk: &[u8], events: &mut Vec<SseEvent>) -> Result<(), EventTooLarge> {
        for &byte in chunk {
            let ends_pair = byte == b'\n' && self.after_carriage_return;
            self.after_carriage_return = byte == b'\r';
            match byte {
                b'\n' if ends_pair => {}
                b'\n' | b'\r' => {
                    let line = std::mem::take(&mut self.line);
                    self.take_line(&line, events);
                    self.line = line;
                    self.line.clear();
                }
                _ => self.line.push(byte),
            }
            if self.line.len() + self.event.data.len() > EVENT_BYTES_MAX {
                return Err(EventTooLarge);
            }
        }
        Ok(())
    }

    fn take_line(&mut self, line: &[u8], events: &mut Vec<SseEvent>) {
        if line.is_empty() {
            let event = std::mem::take(&mut self.event);
            if std::mem::take(&mut self.has_data) {
                events.push(event);
            }
            return;
        }
        let line = String::from_utf8_lossy(line);
        let (field, value) = line.split_once(':').unwrap_or((&line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => self.event.kind = value.to_owned(),
            "id" => self.event.id = Some(value.to_owned()),
            "data" => {
                if self.has_data {
                    self.event.data.push('\n');
                }
                self.event.data.push_str(value);
                self.has_data = true;
            }
            // Comments keep the connection alive; other fields are not used.
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_in_chunks(text: &str, size: usize) -> Vec<SseEvent> {
        let (mut reader, mut events) = (EventReader::default(), Vec::new());
        for chunk in text.as_bytes().chunks(size) {
            reader.take(chunk, &mut events).unwrap();
        }
        events
    }

    #[test]
    fn any_chunking_gives_the_same_events() {
        let text = ": hello\n\nid: 0:1\ndata: {\"a\":1}\n\nevent: end\r\ndata:x\r\ndata: é\r\n\r\ndata: unfinished\n";
        let expected = [
            SseEvent { kind: String::new(), id: Some("0:1".into()), data: "{\"a\":1}".into() },
            SseEvent { kind: "end".into(), id: None, data: "x\né".into() },
        ];
        for size in 1..text.len() {
            assert_eq!(read_in_chunks(text, size), expected, "chunks of {size}");
        }
    }

    #[test]
    fn an_event_without_end_is_rejected() {
        let mut reader = EventReader::default();
        let chunk = vec![b'x'; EVENT_BYTES_MAX + 1];
        assert_eq!(reader.take(&chunk, &mut Vec::new()), Err(EventTooLarge));
    }
}
