//! The endpoints of older systems. Each accepts the requests of its system and makes drafts of them.

pub(crate) mod delay_queue;
pub(crate) mod mqproxy;
pub(crate) mod soraka;
