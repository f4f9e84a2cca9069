//! The role `horn`: wakes devices that are away.
