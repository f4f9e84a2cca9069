//! One connection to Redis that everything of the process shares, and that comes back by itself.
//!
//! Calls are bounded in time: a Redis that is gone costs its callers an error and no more. Nothing is queued for its return.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{MultipleNodeRoutingInfo, RoutingInfo};
use redis::{Arg, Client, Cmd, ConnectionInfo, ErrorKind, RedisError, ServerErrorKind, Value};

use tokio::sync::{Semaphore, SemaphorePermit};

use super::settings::{RedisSettings, RedisStartError};

/// How often a Cluster's client follows a slot that has moved, or waits for one that is moving.
const CLUSTER_RETRIES: u32 = 4;

/// Turns, each of the longest, that a call waits for before its own.
const TURNS_WAITED_FOR: u32 = 4;

/// A script, with the name that Redis has it under.
pub(super) struct Script {
    code: &'static str,
    hash: String,
}

impl Script {
    pub fn new(code: &'static str) -> Self {
        Self { code, hash: redis::Script::new(code).get_hash().to_owned() }
    }

    /// A call of it; its arguments are added to what this returns.
    pub fn on<K: AsRef<[u8]>>(&self, keys: impl ExactSizeIterator<Item = K>) -> Cmd {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&self.hash).arg(keys.len());
        for key in keys {
            command.arg(key.as_ref());
        }
        command
    }

    /// The same call for a Redis that does not know the script yet, or no more.
    fn with_code(&self, call: &Cmd) -> Cmd {
        let mut command = redis::cmd("EVAL");
        command.arg(self.code);
        for argument in call.args_iter().skip(2) {
            if let Arg::Simple(bytes) = argument {
                command.arg(bytes);
            }
        }
        command
    }
}

/// The connection. Cloning shares it.
#[derive(Clone)]
pub struct RedisConnection {
    link: Link,
    prefix: Arc<str>,
    patience: Duration,
    description: Arc<str>,
}

#[derive(Clone)]
enum Link {
    One(ConnectionManager),
    Cluster(ClusterConnection),
}

impl RedisConnection {
    /// Connects, finds out whether it is a Cluster, and says what of Redis's own settings endangers what is kept there.
    pub async fn connect(settings: RedisSettings) -> Result<Self, RedisStartError> {
        let patience = settings.patience();
        let addresses = settings.addresses()?;
        let shown = addresses.iter().map(|each| each.addr().to_string()).collect::<Vec<_>>().join(", ");
        let unreachable = |reason: String| RedisStartError::Unreachable {
            address: shown.clone(),
            waited_ms: patience.as_millis(),
            reason,
        };
        let opening = open(addresses, &settings, &shown, &unreachable);
        let (link, info) = tokio::time::timeout(patience, opening)
            .await
            .map_err(|_| unreachable("no answer in time".to_owned()))??;
        for concern in concerns(&info) {
            tracing::warn!(redis = shown, "{concern}");
        }
        let kind = if matches!(link, Link::Cluster(_)) { "redis cluster" } else { "redis" };
        let description = format!("{kind} at {shown}").into();
        Ok(Self { link, prefix: settings.prefix.into(), patience, description })
    }

    /// What it is and where, for the banner. It has no password in it.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// What every key starts with.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Waits for a turn, for a few answers' time: each turn before it is bounded by itself.
    pub(super) async fn turn_of<'a>(&self, turns: &'a Semaphore) -> Result<SemaphorePermit<'a>, CallError> {
        let patience = self.patience * TURNS_WAITED_FOR;
        match tokio::time::timeout(patience, turns.acquire()).await {
            Ok(Ok(turn)) => Ok(turn),
            _ => Err(CallError(format!("Redis was busy with others for {} ms", patience.as_millis()))),
        }
    }

    /// Calls a script. An error says nothing about whether it ran.
    pub(super) async fn run(&self, script: &Script, call: Cmd) -> Result<Value, CallError> {
        let answer = async {
            match self.send(&call).await {
                Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                    self.send(&script.with_code(&call)).await
                }
                answer => answer,
            }
        };
        self.within_patience(answer).await
    }

    /// Sends a command that only reads.
    pub(super) async fn ask(&self, command: &Cmd) -> Result<Value, CallError> {
        self.within_patience(self.send(command)).await
    }

    async fn within_patience(
        &self,
        answer: impl Future<Output = Result<Value, RedisError>>,
    ) -> Result<Value, CallError> {
        match tokio::time::timeout(self.patience, answer).await {
            Ok(answer) => answer.map_err(|error| CallError(error.to_string())),
            Err(_) => Err(CallError::late(self.patience)),
        }
    }

    async fn send(&self, command: &Cmd) -> Result<Value, RedisError> {
        match &self.link {
            Link::One(connection) => command.query_async(&mut connection.clone()).await,
            Link::Cluster(connection) => command.query_async(&mut connection.clone()).await,
        }
    }
}

/// Why a call has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct CallError(String);

impl CallError {
    /// Redis did not answer in time.
    pub(super) fn late(within: Duration) -> Self {
        Self(format!("no answer from Redis within {} ms", within.as_millis()))
    }
}

/// Opens the link that fits, with what the servers say of themselves.
async fn open(
    addresses: Vec<ConnectionInfo>,
    settings: &RedisSettings,
    shown: &str,
    unreachable: &impl Fn(String) -> RedisStartError,
) -> Result<(Link, String), RedisStartError> {
    let failed = |error: RedisError| unreachable(error.to_string());
    let mut reason = String::new();
    for address in &addresses {
        let (manager, info) = match open_one(address.clone(), settings).await {
            Ok(opened) => opened,
            Err(error) => {
                reason = error.to_string();
                continue;
            }
        };
        if field(&info, "cluster_enabled") == Some("1") {
            let (cluster, info) = open_cluster(addresses, settings).await.map_err(failed)?;
            return Ok((Link::Cluster(cluster), info));
        }
        if addresses.len() > 1 {
            return Err(RedisStartError::NoCluster { address: address.addr().to_string() });
        }
        if field(&info, "role") == Some("slave") {
            return Err(RedisStartError::Replica { address: shown.to_owned() });
        }
        return Ok((Link::One(manager), info));
    }
    Err(unreachable(reason))
}

async fn open_one(
    address: ConnectionInfo,
    settings: &RedisSettings,
) -> Result<(ConnectionManager, String), RedisError> {
    // Whoever calls while Redis is gone is answered at once, and each call tries to connect anew: no retries in between.
    let config = ConnectionManagerConfig::new()
        .set_number_of_retries(0)
        .set_connection_timeout(Some(settings.connect_timeout))
        .set_response_timeout(Some(settings.response_timeout));
    let mut manager = ConnectionManager::new_with_config(Client::open(address)?, config).await?;
    let info = redis::cmd("INFO").query_async(&mut manager).await?;
    Ok((manager, info))
}

async fn open_cluster(
    addresses: Vec<ConnectionInfo>,
    settings: &RedisSettings,
) -> Result<(ClusterConnection, String), RedisError> {
    let client = ClusterClient::builder(addresses)
        .connection_timeout(settings.connect_timeout)
        .response_timeout(settings.response_timeout)
        .overall_response_timeout(Some(settings.patience()))
        .retries(CLUSTER_RETRIES)
        .tcp_settings(settings.tcp())
        .build()?;
    let mut cluster = client.get_async_connection().await?;
    let all = RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, None));
    let said = cluster.route_command(redis::cmd("INFO"), all).await?;
    let mut info = String::new();
    collect_text(&said, &mut info);
    Ok((cluster, info))
}

/// All text in an answer that has one part for each node.
fn collect_text(value: &Value, text: &mut String) {
    match value {
        Value::BulkString(bytes) => {
            text.push_str(&String::from_utf8_lossy(bytes));
            text.push('\n');
        }
        Value::VerbatimString { text: said, .. } | Value::SimpleString(said) => {
            text.push_str(said);
            text.push('\n');
        }
        Value::Array(parts) => parts.iter().for_each(|part| collect_text(part, text)),
        Value::Map(pairs) => pairs.iter().for_each(|(_, said)| collect_text(said, text)),
        _ => {}
    }
}

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    fields(info, name).next()
}

fn fields<'a>(info: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    info.lines().filter_map(move |line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// What of Redis's own settings endangers what is kept there, a sentence each.
fn concerns(info: &str) -> Vec<String> {
    let mut concerns = Vec::new();
    if let Some(policy) = fields(info, "maxmemory_policy").find(|policy| *policy != "noeviction") {
        concerns.push(format!(
            "Redis has maxmemory-policy {policy}: when it is full it drops holds, receipts and progress instead of refusing writes; \
             set maxmemory-policy noeviction"
        ));
    }
    if fields(info, "aof_enabled").any(|enabled| enabled == "0") {
        concerns.push(
            "Redis keeps no append-only file: after its restart holds are built again from the log, which takes a while, \
             repeated publishes are not recognised, and subscriptions deliver again from where they began; set appendonly yes"
                .to_owned(),
        );
    }
    concerns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redis_that_would_evict_or_forget_is_warned_of() {
        assert_eq!(concerns("maxmemory_policy:noeviction\r\naof_enabled:1\r\n"), Vec::<String>::new());
        let said = concerns("maxmemory_policy:allkeys-lru\r\naof_enabled:0\r\n");
        assert!(said.len() == 2 && said[0].contains("allkeys-lru") && said[1].contains("appendonly yes"), "{said:?}");
    }

    #[test]
    fn one_node_of_many_is_enough_for_a_warning() {
        let info = "maxmemory_policy:noeviction\naof_enabled:1\nmaxmemory_policy:volatile-ttl\naof_enabled:1\n";
        assert_eq!(concerns(info).len(), 1);
    }

    #[test]
    fn a_script_is_sent_whole_with_the_same_keys_and_arguments() {
        let script = Script::new("return 1");
        let mut call = script.on(["a", "b"].iter());
        call.arg(b"\x00\xff").arg(7);
        let sent = script.with_code(&call).get_packed_command();
        let expected =
            b"*7\r\n$4\r\nEVAL\r\n$8\r\nreturn 1\r\n$1\r\n2\r\n$1\r\na\r\n$1\r\nb\r\n$2\r\n\x00\xff\r\n$1\r\n7\r\n";
        assert_eq!(sent.as_slice(), expected);
    }
}
