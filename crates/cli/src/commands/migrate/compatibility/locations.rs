//! Support for the locations after the switch.

use kube::ResourceExt as _;

use super::{Finding, MigrationVerdict, finding, push_count};
use crate::commands::migrate::facts::Facts;
use crate::commands::migrate::providers::{ProviderSupport, provider_support, short_name};

/// Provider of backup locations that has no equivalent in Velero.
pub(super) const FILESYSTEM: &str = "filesystem";
/// Providers of snapshot locations that need no plugin, neither here nor with Velero.
const SNAPSHOTTERS: [&str; 1] = ["csi"];

/// Texts for a location whose provider is not supported, or may not be.
pub(super) struct DirectionTexts {
    /// Providers of backup locations that need no plugin.
    stores: &'static [&'static str],
    unsupported: &'static str,
    unclear: &'static str,
    unknown: &'static str,
}

pub(super) const TO_BOWLINE: DirectionTexts = DirectionTexts {
    stores: &["aws", FILESYSTEM],
    unsupported: "Deployment velero has no plugin for this provider, and Bowline needs one too: \
                  name its image with --plugins",
    unclear: "no plugin image has the name of this provider; after the installation, check with \
              `bowline plugin get` that a plugin provides it",
    unknown: "a plugin is required: name its image with --plugins",
};

pub(super) const TO_VELERO: DirectionTexts = DirectionTexts {
    stores: &[],
    unsupported: "Velero needs a plugin for this provider, and its Deployment has none; add one \
                  with `velero plugin add`",
    unclear: "no plugin image in Velero is named after this provider: make sure that one of the \
              plugins serves it",
    unknown: "install Velero with a plugin for this provider",
};

/// True if a location is a folder of Bowline's server.
pub(super) fn is_filesystem(provider: &str) -> bool {
    short_name(provider) == FILESYSTEM
}

/// Support for the locations by a server with plugins of these images.
pub(super) fn check_locations(
    findings: &mut Vec<Finding>,
    facts: &Facts,
    images: Option<&[String]>,
    texts: &DirectionTexts,
) {
    let backups = facts.locations.iter().map(|one| (one.name_any(), one.spec.provider.as_str()));
    // Locations without an equivalent in Velero are reported with their content.
    let has_folders = texts.stores.contains(&FILESYSTEM);
    let backups = backups.filter(|(_, provider)| has_folders || !is_filesystem(provider)).collect();
    let snapshots =
        facts.snapshot_locations.iter().map(|one| (one.name_any(), one.spec.provider.as_str()));
    let mut check = |noun: &str, built_in: &[&str], all: Vec<(String, &str)>| {
        let mut carried = 0;
        for (name, provider) in all {
            let (verdict, reason) =
                match (provider_support(provider, built_in, images.unwrap_or_default()), images) {
                    (ProviderSupport::BuiltIn | ProviderSupport::Plugin(_), _) => {
                        carried += 1;
                        continue;
                    }
                    (_, None) => (MigrationVerdict::Differs, texts.unknown),
                    (ProviderSupport::Unknown, _) => (MigrationVerdict::Differs, texts.unclear),
                    (ProviderSupport::Unsupported, _) => {
                        (MigrationVerdict::Stays, texts.unsupported)
                    }
                };
            findings.push(finding(verdict, format!("{noun} {name} ({provider})"), reason));
        }
        push_count(findings, carried, noun, "");
    };
    check("backup location", texts.stores, backups);
    check("snapshot location", &SNAPSHOTTERS, snapshots.collect());
}

/// Locations that name a file of Velero's pod with their credentials. Bowline does not support this: anyone who can
/// write a location could have any file of the server read.
pub(super) fn check_credentials(findings: &mut Vec<Finding>, facts: &Facts) {
    const KEY: &str = "credentialsFile";
    let backups = facts.locations.iter().map(|one| ("backup", one.name_any(), &one.spec.config));
    let snapshots = facts.snapshot_locations.iter();
    let snapshots = snapshots.map(|one| ("snapshot", one.name_any(), &one.spec.config));
    for (noun, name, _) in
        backups.chain(snapshots).filter(|(_, _, config)| config.contains_key(KEY))
    {
        let reason = format!(
            "`config.{KEY}` is not supported: put the credentials into a Secret, set it with \
             `bowline {noun}-location set {name} --credential SECRET=KEY`, and remove the key from \
             the location"
        );
        findings.push(finding(
            MigrationVerdict::Stays,
            format!("credentials of {noun} location {name}"),
            reason,
        ));
    }
}
