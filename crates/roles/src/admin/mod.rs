//! What people see of a running server: for now one small page. The console will be here.

pub(crate) mod page;
