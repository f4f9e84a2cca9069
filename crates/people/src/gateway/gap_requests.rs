//! When a session asks the owner to continue from its position: after a gap, and after a message that had no room.

use std::time::Duration;

use super::wheel::Tick;

/// How long a session with a gap waits for the missing messages. If the answer is lost too, the next gap requests them again.
pub(super) const ANSWER_WAIT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct GapRequests {
    /// The owner was asked to continue from the session's position, and has until then.
    asked_until: Tick,
    /// Another gap came before that time; it may concern the answer.
    is_late: bool,
    /// A stored message had no room. It is requested when the device has read what waits.
    pub wants_room: bool,
}

impl GapRequests {
    pub const NONE: Self = Self { asked_until: Tick(0), is_late: false, wants_room: false };

    /// Whether to ask now, after a gap. Not while messages wait for room.
    pub fn asks(&mut self, now: Tick) -> bool {
        let is_early = now < self.asked_until;
        let asks = !self.wants_room && !is_early;
        self.is_late = !self.wants_room && is_early;
        if asks {
            self.asked_until = now.after(ANSWER_WAIT);
        }
        asks
    }

    /// When to ask once more, unless the owner answers before: a gap came soon after the last request.
    pub fn asks_at(&self) -> Option<Tick> {
        self.is_late.then_some(self.asked_until)
    }

    /// The owner has continued.
    pub fn answered(&mut self) {
        (self.asked_until, self.is_late) = (Tick(0), false);
    }

    /// The queue is empty. Whether the owner must be asked for messages that had no room.
    pub fn made_room(&mut self) -> bool {
        let made_room = std::mem::take(&mut self.wants_room);
        // The message without room may have been the answer to the last request.
        if made_room {
            self.answered();
        }
        made_room
    }
}
