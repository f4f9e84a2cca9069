//! The banner that the server prints when it is ready. Programs may rely on the line `address`.

use std::io::Write as _;
use std::net::SocketAddr;

use whimbrel_catalogue::topics::Registry;
use whimbrel_engines::resolve::Engines;
use whimbrel_model::HOLDS_TOPIC;

use crate::config::Config;

/// Minimum number of records to fold for a line about it; fewer do not delay the start noticeably.
const FOLDING_SAID: u64 = 100_000;

/// The URL at which a client on this machine reaches the server.
pub fn local_url(address: SocketAddr) -> String {
    let mut reachable = address;
    if address.ip().is_unspecified() {
        reachable.set_ip(if address.is_ipv4() { [127, 0, 0, 1].into() } else { std::net::Ipv6Addr::LOCALHOST.into() });
    }
    format!("http://{reachable}")
}

/// The number of log records that the store of holds must fold before it is complete, if that is many: the store was lost or removed, or
/// lags far behind. `None` if the number is unknown.
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

pub fn render(config: &Config, address: SocketAddr, internal: Option<SocketAddr>, engines: &[String]) -> String {
    let url = local_url(address);
    let data = std::fs::canonicalize(&config.process.data).unwrap_or_else(|_| config.process.data.clone());
    let key = if config.keys.is_empty() { "" } else { "-H 'Authorization: Bearer <your key>' " };
    let mut text = format!("Whimbrel {}\n", env!("CARGO_PKG_VERSION"));
    let mut line = |name: &str, value: &str| text.push_str(&format!("  {name:<9} {value}\n"));
    line("data", &data.display().to_string());
    line("roles", &config.process.roles.names().join(", "));
    line("engines", &engines.join(", "));
    line("address", &url);
    if let Some(internal) = internal {
        line("internal", &internal.to_string());
    }
    if !config.process.roles.receive {
        line("serves", "/healthz, /readyz and /metrics only: this node has no role `receive`");
        return text;
    }
    line("console", &format!("{url}/"));
    line("try", &format!("curl {key}--data-binary 'hello' {url}/v1/topics/greetings/messages"));
    line("", &format!("curl {key}'{url}/v1/topics/greetings/messages?partition=0'"));
    if config.process.roles.gateway && !config.clients.has_keys() {
        if config.keys.is_empty() {
            line("people", &format!("{url}/people: open it twice, as alice and as bob"));
        }
        line("a device", &format!("curl -N '{url}/v1/connect/sse?uid=alice&platform=terminal'"));
    }
    line("a push", &format!("curl {key}-d '{{\"payload\":\"hello\"}}' {url}/v1/users/alice/messages"));
    if config.keys.is_empty() {
        let open = if address.ip().is_loopback() {
            "no API keys: only clients on this machine can connect"
        } else {
            "INSECURE: no API keys; authentication is disabled"
        };
        line("keys", open);
    }
    text
}

/// Prints the banner. A closed standard output does not stop the server.
pub fn print(text: &str) {
    let mut stdout = std::io::stdout().lock();
    let _ = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unspecified_address_is_printed_as_a_usable_url() {
        assert_eq!(local_url("0.0.0.0:7600".parse().unwrap()), "http://127.0.0.1:7600");
        assert_eq!(local_url("[::]:7600".parse().unwrap()), "http://[::1]:7600");
        assert_eq!(local_url("10.1.2.3:7600".parse().unwrap()), "http://10.1.2.3:7600");
    }
}
