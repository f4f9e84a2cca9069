//! Name lookups, one at a time for each origin.
//!
//! A lookup in the system's resolver occupies a thread until the resolver answers, even if no caller waits any more. These threads are few
//! and shared by the process, so a name with unresponsive name servers must not occupy all of them.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};
use tokio::net::lookup_host;
use tokio::sync::Semaphore;

use super::limits::BROUGHT_LOOKUPS_MAX;

/// Limits concurrent lookups of hosts that messages name: publishers can name any number of them.
static BROUGHT: Semaphore = Semaphore::const_new(BROUGHT_LOOKUPS_MAX);

type LookupResult = Result<Vec<SocketAddr>, Arc<str>>;

/// The resolver of one origin, with its lookup in progress.
pub(super) struct Resolver {
    is_brought: bool,
    under_way: Mutex<Option<Shared<BoxFuture<'static, LookupResult>>>>,
}

impl Resolver {
    pub(super) fn new(is_brought: bool) -> Self {
        Self { is_brought, under_way: Mutex::default() }
    }

    /// Joins the lookup in progress, or starts one. A caller never gets the result of a lookup that ended before its call.
    pub(super) async fn look_up(&self, host: &str, port: u16) -> LookupResult {
        let lookup = {
            let mut under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
            match under_way.as_ref().filter(|lookup| lookup.peek().is_none()) {
                Some(lookup) => lookup.clone(),
                None => {
                    let lookup = ask(host.to_owned(), port, self.is_brought).boxed().shared();
                    // The lookup runs in its own task, so that it completes without callers and a later caller never joins an old one.
                    tokio::spawn(lookup.clone());
                    under_way.insert(lookup).clone()
                }
            }
        };
        lookup.await
    }
}

async fn ask(host: String, port: u16, is_brought: bool) -> LookupResult {
    let _permit = if is_brought { BROUGHT.acquire().await.ok() } else { None };
    match lookup_host((host, port)).await {
        Ok(addresses) => Ok(addresses.collect()),
        Err(error) => Err(error.to_string().into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn concurrent_callers_share_a_lookup_and_later_ones_start_their_own() {
        let names = Resolver::new(false);
        let has_port =
            |found: &LookupResult, port| found.as_ref().is_ok_and(|all| all.iter().all(|one| one.port() == port));
        let (one, other) =
            futures_util::future::join(names.look_up("localhost", 7), names.look_up("localhost", 9)).await;
        assert!(has_port(&one, 7) && has_port(&other, 7), "there was one lookup: {one:?}, {other:?}");
        assert!(has_port(&names.look_up("localhost", 9).await, 9), "a later call has its own lookup");
    }
}
