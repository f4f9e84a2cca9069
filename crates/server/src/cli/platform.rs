//! `whimbrel platform` and `device`: the rules of platforms, and the registry of devices for notifications.

use std::process::ExitCode;

use serde_json::Value;
use whimbrel_client::{DeviceInfo, NewDevice, PlatformBody, PlatformInfo};

use super::CliError;
use super::connect::{ConnectArgs, converse};
use super::output::{members, print_json, print_line, table};

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
            let client = connect.client()?;
            converse(async { show_platform(&client.platform(&platform).await?, connect.json) })
        }
        PlatformAction::List { connect } => {
            let client = connect.client()?;
            converse(async { show_platforms(&client.platforms().await?, connect.json) })
        }
        PlatformAction::Delete { platform, connect } => {
            let client = connect.client()?;
            converse(async {
                client.delete_platform(&platform).await?;
                if !connect.json {
                    print_line(&format!("{platform} has the defaults again"))?;
                }
                Ok(ExitCode::SUCCESS)
            })
        }
        PlatformAction::Set { platform, settings, connect } => {
            let client = connect.client()?;
            let wanted = PlatformBody {
                store: settings.store,
                max_stored: settings.max_stored,
                ttl: settings.ttl,
                notify: settings.notify,
                sessions: settings.sessions,
                ack_timeout: settings.ack_timeout,
            };
            converse(async { show_platform(&client.put_platform(&platform, &wanted).await?, connect.json) })
        }
    }
}

pub fn device(args: DeviceArgs) -> Result<ExitCode, CliError> {
    match args.action {
        DeviceAction::Put { uid, device, platform, provider, token, with, connect } => {
            let client = connect.client()?;
            let more = with.into_iter().map(|(name, value)| (name, Value::from(value))).collect();
            let info = NewDevice { platform, provider, token, more, ..NewDevice::default() };
            converse(async {
                let answer = client.put_device(&uid, &device, &info).await?;
                if connect.json {
                    print_json(&answer)?;
                } else {
                    print_line(&format!("notifications for {uid} go to {device} through {}", info.provider))?;
                    if let Some(warning) = &answer.warning {
                        print_line(&format!("warning: {warning}"))?;
                    }
                }
                Ok(ExitCode::SUCCESS)
            })
        }
        DeviceAction::List { uid, connect } => {
            let client = connect.client()?;
            converse(async { show_devices(&client.devices(&uid).await?, connect.json) })
        }
        DeviceAction::Show { uid, device, connect } => {
            let client = connect.client()?;
            converse(async { show_devices(&[client.device(&uid, &device).await?], connect.json) })
        }
        DeviceAction::Delete { uid, device, connect } => {
            let client = connect.client()?;
            converse(async {
                client.delete_device(&uid, &device).await?;
                if !connect.json {
                    print_line(&format!("deleted the device {device} of {uid}"))?;
                }
                Ok(ExitCode::SUCCESS)
            })
        }
    }
}

/// Prints a row for each device, or a line of JSON.
fn show_devices(devices: &[DeviceInfo], json: bool) -> Result<ExitCode, CliError> {
    if json {
        devices.iter().try_for_each(print_json)?;
    } else if devices.is_empty() {
        print_line("no devices are registered")?;
    } else {
        let mut shown = table(["device", "platform", "provider", "token"]);
        for device in devices {
            shown.add_row([&device.device, &device.platform, &device.provider, &device.token]);
        }
        print_line(&shown.to_string())?;
        devices.iter().try_for_each(|device| {
            device
                .warning
                .as_ref()
                .map_or(Ok(()), |warning| print_line(&format!("warning: {}: {warning}", device.device)))
        })?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints a row for each platform, or a line of JSON.
fn show_platforms(platforms: &[PlatformInfo], json: bool) -> Result<ExitCode, CliError> {
    if json {
        platforms.iter().try_for_each(print_json)?;
    } else if platforms.is_empty() {
        print_line("no platform is configured: all have the defaults")?;
    } else {
        const SETTINGS: [&str; 7] = ["platform", "store", "max_stored", "ttl", "notify", "sessions", "ack_timeout"];
        let mut shown = table(SETTINGS);
        for platform in platforms {
            let members = members(platform);
            shown.add_row(SETTINGS.map(|name| text_of(&members[name])));
        }
        print_line(&shown.to_string())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn text_of(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn show_platform(platform: &PlatformInfo, json: bool) -> Result<ExitCode, CliError> {
    if json {
        print_json(platform)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut shown = table(["setting", "value"]);
    for (name, value) in members(platform) {
        shown.add_row([name, text_of(&value)]);
    }
    print_line(&shown.to_string())?;
    Ok(ExitCode::SUCCESS)
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
