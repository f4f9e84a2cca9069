//! The role `carrier`: owns partitions of `_push`; takes every push of its users in order, to their devices and their inboxes.
