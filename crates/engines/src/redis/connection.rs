//! One connection to Redis, which all stores of the process share and which reconnects by itself.
//!
//! Every call has a timeout. While Redis is unreachable, calls fail; none is queued until Redis is back.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{MultipleNodeRoutingInfo, RoutingInfo};
use redis::{Arg, Client, Cmd, ConnectionInfo, ErrorKind, RedisError, ServerErrorKind, Value};

use tokio::sync::{Semaphore, SemaphorePermit};

use super::settings::{RedisSettings, RedisStartError};

/// Retries of the Cluster client for a call whose slot has moved or is moving.
const CLUSTER_RETRIES: u32 = 4;

/// The maximum wait for a turn, as a multiple of the timeout of a call.
const TURN_TIMEOUT_CALLS: u32 = 4;

/// A script, with the name (its SHA-1) under which Redis caches it.
pub(super) struct Script {
    code: &'static str,
    hash: String,
}

impl Script {
    pub fn new(code: &'static str) -> Self {
        Self { code, hash: redis::Script::new(code).get_hash().to_owned() }
    }

    /// Begins a call of the script. The caller adds the arguments.
    pub fn on<K: AsRef<[u8]>>(&self, keys: impl ExactSizeIterator<Item = K>) -> Cmd {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&self.hash).arg(keys.len());
        for key in keys {
            command.arg(key.as_ref());
        }
        command
    }

    /// The same call with the code of the script, for a Redis that has not cached it or has evicted it.
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

/// The connection. Clones share it.
#[derive(Clone)]
pub struct RedisConnection {
    link: RedisLink,
    prefix: Arc<str>,
    call_timeout: Duration,
    description: Arc<str>,
}

#[derive(Clone)]
enum RedisLink {
    One(ConnectionManager),
    Cluster(ClusterConnection),
}

impl RedisConnection {
    /// Connects, detects whether Redis is a Cluster, and logs a warning for each setting of Redis that endangers the stored data.
    pub async fn connect(settings: RedisSettings) -> Result<Self, RedisStartError> {
        let call_timeout = settings.call_timeout();
        let addresses = settings.addresses()?;
        let shown = addresses.iter().map(|each| each.addr().to_string()).collect::<Vec<_>>().join(", ");
        let unreachable = |reason: String| RedisStartError::Unreachable {
            address: shown.clone(),
            waited_ms: call_timeout.as_millis(),
            reason,
        };
        let opening = open(addresses, &settings, &shown, &unreachable);
        let (link, info) = tokio::time::timeout(call_timeout, opening)
            .await
            .map_err(|_| unreachable("no answer in time".to_owned()))??;
        for warning in setting_warnings(&info) {
            tracing::warn!(redis = shown, "{warning}");
        }
        let kind = if matches!(link, RedisLink::Cluster(_)) { "redis cluster" } else { "redis" };
        let description = format!("{kind} at {shown}").into();
        Ok(Self { link, prefix: settings.prefix.into(), call_timeout, description })
    }

    /// The kind and the addresses of Redis, for the banner. It contains no password.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// The prefix of every key.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Waits for a turn, at most [`TURN_TIMEOUT_CALLS`] times the timeout of a call. Each turn before it has a timeout of its own.
    pub(super) async fn acquire_turn<'a>(&self, turns: &'a Semaphore) -> Result<SemaphorePermit<'a>, RedisCallError> {
        let turn_timeout = self.call_timeout * TURN_TIMEOUT_CALLS;
        match tokio::time::timeout(turn_timeout, turns.acquire()).await {
            Ok(Ok(turn)) => Ok(turn),
            _ => {
                let waited_ms = turn_timeout.as_millis();
                Err(RedisCallError::Failed(format!("Redis was busy with other calls for {waited_ms} ms")))
            }
        }
    }

    /// Calls a script. After an error, the script may have run or may not.
    pub(super) async fn run(&self, script: &Script, call: Cmd) -> Result<Value, RedisCallError> {
        let answer = async {
            match self.send(&call).await {
                Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                    self.send(&script.with_code(&call)).await
                }
                answer => answer,
            }
        };
        self.within_timeout(answer).await
    }

    pub(super) async fn ask(&self, command: &Cmd) -> Result<Value, RedisCallError> {
        self.within_timeout(self.send(command)).await
    }

    async fn within_timeout(
        &self,
        answer: impl Future<Output = Result<Value, RedisError>>,
    ) -> Result<Value, RedisCallError> {
        match tokio::time::timeout(self.call_timeout, answer).await {
            Ok(answer) => answer.map_err(|error| RedisCallError::Failed(error.to_string())),
            Err(_) => Err(RedisCallError::timed_out(self.call_timeout)),
        }
    }

    async fn send(&self, command: &Cmd) -> Result<Value, RedisError> {
        match &self.link {
            RedisLink::One(connection) => command.query_async(&mut connection.clone()).await,
            RedisLink::Cluster(connection) => command.query_async(&mut connection.clone()).await,
        }
    }
}

/// The reason why a call has no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum RedisCallError {
    #[error("{0}")]
    Failed(String),
    #[error("a write of {changes} changes is too large for one Redis script")]
    TooLarge { changes: usize },
    /// The shape of the reply is not that of the script.
    #[error("Redis sent a reply of an unexpected shape")]
    UnexpectedReply,
}

impl RedisCallError {
    /// Redis did not answer before the timeout.
    pub(super) fn timed_out(within: Duration) -> Self {
        Self::Failed(format!("no answer from Redis within {} ms", within.as_millis()))
    }
}

/// Opens a link to the single Redis or to the Cluster. Returns it with the `INFO` of the servers.
async fn open(
    addresses: Vec<ConnectionInfo>,
    settings: &RedisSettings,
    shown: &str,
    unreachable: &impl Fn(String) -> RedisStartError,
) -> Result<(RedisLink, String), RedisStartError> {
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
            return Ok((RedisLink::Cluster(cluster), info));
        }
        if addresses.len() > 1 {
            return Err(RedisStartError::NoCluster { address: address.addr().to_string() });
        }
        if field(&info, "role") == Some("slave") {
            return Err(RedisStartError::Replica { address: shown.to_owned() });
        }
        return Ok((RedisLink::One(manager), info));
    }
    Err(unreachable(reason))
}

async fn open_one(
    address: ConnectionInfo,
    settings: &RedisSettings,
) -> Result<(ConnectionManager, String), RedisError> {
    // No retries: while Redis is unreachable, a call fails at once, and the next call tries to connect again.
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
        .overall_response_timeout(Some(settings.call_timeout()))
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

/// Collects the text of an answer that has one part for each node.
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

/// A warning, of one sentence, for each setting of Redis that endangers the stored data.
fn setting_warnings(info: &str) -> Vec<String> {
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
    fn eviction_and_missing_persistence_cause_warnings() {
        assert_eq!(setting_warnings("maxmemory_policy:noeviction\r\naof_enabled:1\r\n"), Vec::<String>::new());
        let said = setting_warnings("maxmemory_policy:allkeys-lru\r\naof_enabled:0\r\n");
        assert!(said.len() == 2 && said[0].contains("allkeys-lru") && said[1].contains("appendonly yes"), "{said:?}");
    }

    #[test]
    fn one_node_with_a_bad_setting_causes_a_warning() {
        let info = "maxmemory_policy:noeviction\naof_enabled:1\nmaxmemory_policy:volatile-ttl\naof_enabled:1\n";
        assert_eq!(setting_warnings(info).len(), 1);
    }

    #[test]
    fn a_script_that_is_not_cached_is_sent_with_the_same_keys_and_arguments() {
        let script = Script::new("return 1");
        let mut call = script.on(["a", "b"].iter());
        call.arg(b"\x00\xff").arg(7);
        let sent = script.with_code(&call).get_packed_command();
        let expected =
            b"*7\r\n$4\r\nEVAL\r\n$8\r\nreturn 1\r\n$1\r\n2\r\n$1\r\na\r\n$1\r\nb\r\n$2\r\n\x00\xff\r\n$1\r\n7\r\n";
        assert_eq!(sent.as_slice(), expected);
    }
}
