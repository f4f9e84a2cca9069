//! The role `presence`: who is online, where, since when, and how fresh that answer is.
