//! The bytes that wait to be written to a device. An empty queue has no memory.

use super::wheel::Tick;

/// Bytes of a frame beside the message's shared part, at most.
const FRAMING_BYTES: usize = 192;

#[derive(Debug)]
pub(super) struct OutputQueue {
    bytes: Vec<u8>,
    /// The bytes before it are written.
    start: usize,
    /// When the device last read, or when the queue stopped being empty.
    pub moved_at: Tick,
    /// Lost ephemeral messages that were not reported to the device yet.
    pub lost: u32,
}

impl OutputQueue {
    pub fn new(now: Tick) -> Self {
        Self { bytes: Vec::new(), start: 0, moved_at: now, lost: 0 }
    }

    /// The bytes that wait to be written.
    pub fn waiting(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    /// Whether so many more bytes may wait. A single message may have any size.
    pub fn has_room(&self, bytes: usize, room: usize) -> bool {
        let waiting = self.waiting().len();
        waiting == 0 || waiting + bytes + FRAMING_BYTES <= room
    }

    /// The end of the queue, to append a frame.
    pub fn end(&mut self, now: Tick) -> &mut Vec<u8> {
        if self.waiting().is_empty() {
            self.moved_at = now;
        }
        &mut self.bytes
    }

    /// Removes written bytes.
    pub fn written(&mut self, count: usize, now: Tick) {
        self.start += count;
        self.moved_at = now;
        if self.start == self.bytes.len() {
            (self.bytes, self.start) = (Vec::new(), 0);
        } else if self.start > self.bytes.len() / 2 {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
    }

    /// Takes all waiting bytes.
    pub fn take(&mut self, now: Tick) -> Vec<u8> {
        self.moved_at = now;
        let mut all = std::mem::take(&mut self.bytes);
        all.drain(..std::mem::take(&mut self.start));
        all
    }
}
