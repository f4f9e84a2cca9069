//! Server-sent events, as bytes arrive: chunks in, events out. It holds at most one event that is not yet complete, bounded by
//! [`EVENT_BYTES_MAX`]; it does no I/O.

/// Bytes of one event that is not complete yet: above any message that a server's limits let through as base64.
pub const EVENT_BYTES_MAX: usize = 64 << 20;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Event {
    /// Empty: the default kind, `message`.
    pub kind: String,
    pub id: Option<String>,
    pub data: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an event of more than {EVENT_BYTES_MAX} bytes")]
pub struct EventTooLarge;

#[derive(Debug, Default)]
pub struct EventReader {
    line: Vec<u8>,
    event: Event,
    has_data: bool,
    after_carriage_return: bool,
}

impl EventReader {
    /// Takes the next bytes and adds the events that they completed.
    pub fn take(&mut self, chunk: &[u8], events: &mut Vec<Event>) -> Result<(), EventTooLarge> {
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

    fn take_line(&mut self, line: &[u8], events: &mut Vec<Event>) {
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
            // Comments keep the connection alive; other fields are not ours.
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_in_chunks(text: &str, size: usize) -> Vec<Event> {
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
            Event { kind: String::new(), id: Some("0:1".into()), data: "{\"a\":1}".into() },
            Event { kind: "end".into(), id: None, data: "x\né".into() },
        ];
        for size in 1..text.len() {
            assert_eq!(read_in_chunks(text, size), expected, "chunks of {size}");
        }
    }

    #[test]
    fn an_event_without_end_is_refused() {
        let mut reader = EventReader::default();
        let chunk = vec![b'x'; EVENT_BYTES_MAX + 1];
        assert_eq!(reader.take(&chunk, &mut Vec::new()), Err(EventTooLarge));
    }
}
