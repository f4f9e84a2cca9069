//! `whimbrel platform` and `device`: the rules of platforms, and the registry of devices for notifications.

use std::process::ExitCode;

use serde_json::Value;
use whimbrel_client::{DeviceInfo, NewDevice, PlatformBody, PlatformInfo};

use super::CliError;
use super::connect::{ConnectArgs, converse};
use super::output::{members, print_answers, table, text_of};

#[derive(Debug, clap::Args)]
pub struct PlatformArgs {
    #[command(subcommand)]
    action: PlatformAction,
}

#[derive(Debug, clap::Subcommand)]
enum PlatformAction {
    /// Show the settings of a platform
    Show {
        platform: String,
        #[command(flatten)]
        connect: ConnectArgs,
    },
    /// List the platforms that have settings of their own
    List {
        #[command(flatten)]
        connect: ConnectArgs,
    },
    /// Reset a platform to the defaults
    Delete {
        platform: String,
        #[command(flatten)]
        connect: ConnectArgs,
    },
    /// Configure a platform; omitted settings take their defaults
    Set {
        platform: String,
        #[command(flatten)]
        settings: PlatformSettingsArgs,
        #[command(flatten)]
        connect: ConnectArgs,
    },
}

#[derive(Debug, clap::Args)]
struct PlatformSettingsArgs {
    /// Whether messages are stored until they are acknowledged
    #[arg(long, value_name = "BOOL")]
    store: Option<bool>,
    /// Maximum number of stored messages for one device
    #[arg(long, value_name = "COUNT")]
    max_stored: Option<u32>,
    /// How long a message is stored: 7d
    #[arg(long, value_name = "DURATION")]
    ttl: Option<String>,
    /// Whether its devices get notifications
    #[arg(long, value_name = "BOOL")]
    notify: Option<bool>,
    /// Concurrent sessions of a user: replace, reject, or a number
    #[arg(long, value_name = "RULE", value_parser = sessions)]
    sessions: Option<Value>,
    /// Timeout of an acknowledgement: 10s
    #[arg(long, value_name = "DURATION")]
    ack_timeout: Option<String>,
}

fn sessions(text: &str) -> Result<Value, String> {
    match text {
        "replace" | "reject" => Ok(text.into()),
        many => many
            .parse::<u32>()
            .map(|many| serde_json::json!({ "many": many }))
            .map_err(|_| "expected replace, reject, or a number".to_owned()),
    }
}

#[derive(Debug, clap::Args)]
pub struct DeviceArgs {
    #[command(subcommand)]
    action: DeviceAction,
}

#[derive(Debug, clap::Subcommand)]
enum DeviceAction {
    /// Register a device for notifications
    Put {
        uid: String,
        device: String,
        #[arg(long)]
        platform: String,
        /// The provider of its notifications
        #[arg(long, value_parser = ["apns", "fcm", "webpush", "http"])]
        provider: String,
        /// The device token; for webpush the endpoint, for http the URL
        #[arg(long)]
        token: String,
        /// A further field of the provider, as often as needed: p256dh=…, auth=…, topic=…
        #[arg(long, value_name = "NAME=VALUE", value_parser = name_and_value)]
        with: Vec<(String, String)>,
        #[command(flatten)]
        connect: ConnectArgs,
    },
    /// List a user's devices
    List {
        uid: String,
        #[command(flatten)]
        connect: ConnectArgs,
    },
    /// Show a device
    Show {
        uid: String,
        device: String,
        #[command(flatten)]
        connect: ConnectArgs,
    },
    /// Delete a device
    Delete {
        uid: String,
        device: String,
        #[command(flatten)]
        connect: ConnectArgs,
    },
}

fn name_and_value(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

pub fn platform(args: PlatformArgs) -> Result<ExitCode, CliError> {
    match args.action {
        PlatformAction::Show { platform, connect } => {
            connect.show(async |client| client.platform(&platform).await, setting_table)
        }
        PlatformAction::List { connect } => {
            let client = connect.client()?;
            converse(async { print_answers(&client.platforms().await?, connect.json, platform_table) })
        }
        PlatformAction::Delete { platform, connect } => {
            let sentence = format!("{platform} has the defaults again");
            connect.finish(async |client| client.delete_platform(&platform).await, &sentence)
        }
        PlatformAction::Set { platform, settings, connect } => {
            let wanted = PlatformBody {
                store: settings.store,
                max_stored: settings.max_stored,
                ttl: settings.ttl,
                notify: settings.notify,
                sessions: settings.sessions,
                ack_timeout: settings.ack_timeout,
            };
            connect.show(async |client| client.put_platform(&platform, &wanted).await, setting_table)
        }
    }
}

pub fn device(args: DeviceArgs) -> Result<ExitCode, CliError> {
    match args.action {
        DeviceAction::Put { uid, device, platform, provider, token, with, connect } => {
            let more = with.into_iter().map(|(name, value)| (name, Value::from(value))).collect();
            let info = NewDevice { platform, provider, token, more, ..NewDevice::default() };
            connect.show(
                async |client| client.put_device(&uid, &device, &info).await,
                |answer| {
                    let done = format!("notifications for {uid} go to {device} through {}", info.provider);
                    answer.warning.as_ref().map_or(done.clone(), |warning| format!("{done}\nwarning: {warning}"))
                },
            )
        }
        DeviceAction::List { uid, connect } => {
            let client = connect.client()?;
            converse(async { print_answers(&client.devices(&uid).await?, connect.json, device_table) })
        }
        DeviceAction::Show { uid, device, connect } => connect.show(
            async |client| client.device(&uid, &device).await,
            |device| device_table(std::slice::from_ref(device)),
        ),
        DeviceAction::Delete { uid, device, connect } => {
            let sentence = format!("deleted the device {device} of {uid}");
            connect.finish(async |client| client.delete_device(&uid, &device).await, &sentence)
        }
    }
}

fn device_table(devices: &[DeviceInfo]) -> String {
    if devices.is_empty() {
        return "no devices are registered".to_owned();
    }
    let mut shown = table(["device", "platform", "provider", "token"]);
    for device in devices {
        shown.add_row([&device.device, &device.platform, &device.provider, &device.token]);
    }
    let warnings = devices
        .iter()
        .filter_map(|device| device.warning.as_ref().map(|warning| format!("\nwarning: {}: {warning}", device.device)));
    format!("{shown}{}", warnings.collect::<String>())
}

fn platform_table(platforms: &[PlatformInfo]) -> String {
    if platforms.is_empty() {
        return "no platform is configured: all have the defaults".to_owned();
    }
    const SETTINGS: [&str; 7] = ["platform", "store", "max_stored", "ttl", "notify", "sessions", "ack_timeout"];
    let mut shown = table(SETTINGS);
    for platform in platforms {
        let members = members(platform);
        shown.add_row(SETTINGS.map(|name| text_of(&members[name])));
    }
    shown.to_string()
}

fn setting_table(platform: &PlatformInfo) -> String {
    let mut shown = table(["setting", "value"]);
    for (name, value) in members(platform) {
        shown.add_row([name, text_of(&value)]);
    }
    shown.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_rule_is_a_word_or_a_number() {
        assert_eq!(sessions("replace"), Ok("replace".into()));
        assert_eq!(sessions("3"), Ok(serde_json::json!({ "many": 3 })));
        assert!(sessions("few").is_err());
    }
}
