//! What the server says when it is ready, for the person who started it. Programs may rely on the line `address`.

use std::io::Write as _;
use std::net::SocketAddr;

use whimbrel_catalogue::topics::Registry;
use whimbrel_engines::resolve::Engines;
use whimbrel_model::HOLDS_TOPIC;

use crate::config::Config;

/// Records to fold that are worth a word: below, a start takes no longer for them.
const FOLDING_SAID: u64 = 100_000;

/// The URL at which a client on this machine reaches the server.
pub fn local_url(address: SocketAddr) -> String {
    let mut reachable = address;
    if address.ip().is_unspecified() {
        reachable.set_ip(if address.is_ipv4() { [127, 0, 0, 1].into() } else { std::net::Ipv6Addr::LOCALHOST.into() });
    }
    format!("http://{reachable}")
}

/// What a start has to make up for before every hold is known, where that is much: the store of holds was lost or removed, or is far
/// behind. Nothing where it cannot be told.
pub async fn folding(engines: &Engines, registry: &Registry) -> Option<String> {
    let topic = registry.get(HOLDS_TOPIC)?;
    let (mut records, mut is_empty) = (0, true);
    for partition in topic.all_partitions() {
        let bounds = engines.log.bounds(partition).await.ok()?;
        let applied = engines.timers.get(partition.index, Vec::new()).await.ok()?.applied;
        records += bounds.next.saturating_sub(applied.max(bounds.first));
        is_empty &= applied == 0;
    }
    match records {
        0 => None,
        records if is_empty => Some(format!("holds: the store is empty; folding {records} records of the log")),
        records if records >= FOLDING_SAID => Some(format!("holds: folding {records} records of the log")),
        _ => None,
    }
}

/// Renders the banner.
pub fn render(config: &Config, address: SocketAddr, internal: Option<SocketAddr>, engines: &[String]) -> String {
    let url = local_url(address);
    let data = std::fs::canonicalize(&config.data).unwrap_or_else(|_| config.data.clone());
    let key = if config.keys.is_empty() { "" } else { "-H 'Authorization: Bearer <your key>' " };
    let mut text = format!("Whimbrel {}\n", env!("CARGO_PKG_VERSION"));
    let mut line = |name: &str, value: &str| text.push_str(&format!("  {name:<9} {value}\n"));
    line("data", &data.display().to_string());
    line("roles", &config.roles.names().join(", "));
    line("engines", &engines.join(", "));
    line("address", &url);
    if let Some(internal) = internal {
        line("internal", &internal.to_string());
    }
    if !config.roles.receive {
        line("serves", "/healthz, /readyz and /metrics only: without the role `receive` it takes no requests");
        return text;
    }
    line("console", &format!("{url}/"));
    line("try", &format!("curl {key}--data-binary 'hello' {url}/v1/topics/greetings/messages"));
    line("", &format!("curl {key}'{url}/v1/topics/greetings/messages?partition=0'"));
    if config.roles.gateway && !config.clients.has_keys() {
        if config.keys.is_empty() {
            line("people", &format!("{url}/people: open it twice, as alice and as bob"));
        }
        line("a device", &format!("curl -N '{url}/v1/connect/sse?uid=alice&platform=terminal'"));
    }
    line("a push", &format!("curl {key}-d '{{\"payload\":\"hello\"}}' {url}/v1/users/alice/messages"));
    if config.keys.is_empty() {
        let open = if address.ip().is_loopback() {
            "no API keys: served to this machine only"
        } else {
            "INSECURE: no API keys, and served to everybody who can connect"
        };
        line("keys", open);
    }
    text
}

/// Prints it. A closed standard output is no reason not to serve.
pub fn print(text: &str) {
    let mut stdout = std::io::stdout().lock();
    let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_means_all_is_told_as_one_that_can_be_typed() {
        assert_eq!(local_url("0.0.0.0:7600".parse().unwrap()), "http://127.0.0.1:7600");
        assert_eq!(local_url("[::]:7600".parse().unwrap()), "http://[::1]:7600");
        assert_eq!(local_url("10.1.2.3:7600".parse().unwrap()), "http://10.1.2.3:7600");
    }
}
