//! The three forms of a message.
