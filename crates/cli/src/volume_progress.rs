//! Work of plugins on the data of volumes: VolumePluginBackups and VolumePluginRestores, read alike.
//!
//! Plugins may write them as well as the server, so their content is not trusted.

#[cfg(test)]
pub(crate) mod tests;

use std::collections::BTreeMap;
use std::fmt::{self, Debug};

use bowline_api::volume_plugin::{VolumePluginOutcome, VolumePluginPhase, VolumePluginProgress};
use bowline_api::{VolumePluginBackup, VolumePluginRestore, label};
use indicatif::BinaryBytes;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::Resource;
use kube::api::ListParams;
use kube::core::NamespaceResourceScope;
use serde::de::DeserializeOwned;

use crate::installation::Installation;
use crate::pages;
use crate::rate::{TransferRate, average_rate};
use crate::run::Run;

/// Work of a plugin on the data of one volume.
#[derive(Clone, Debug, Default)]
pub(crate) struct VolumeProgress {
    /// Volume; empty for one that is being created and has no name yet.
    pub(crate) volume: String,
    pub(crate) plugin: String,
    pub(crate) snapshot: String,
    pub(crate) phase: Option<VolumePluginPhase>,
    pub(crate) bytes: ByteProgress,
    /// Progress in other units than bytes.
    pub(crate) units: Option<UnitProgress>,
    /// Values that the plugin publishes for users.
    pub(crate) plugin_specific: BTreeMap<String, String>,
    pub(crate) message: String,
    pub(crate) started: Option<Time>,
    pub(crate) ended: Option<Time>,
    /// Last update, as recorded by the API server.
    pub(crate) updated: Option<Time>,
}

impl VolumeProgress {
    pub(crate) fn name(&self) -> &str {
        if self.volume.is_empty() { &self.snapshot } else { &self.volume }
    }

    /// Phase; New if none is set.
    pub(crate) fn phase(&self) -> &str {
        let phase = self.phase.as_ref().map(VolumePluginPhase::as_str);
        phase.filter(|phase| !phase.is_empty()).unwrap_or("New")
    }

    /// Outcome, if it has ended.
    pub(crate) fn outcome(&self) -> Option<VolumePluginOutcome> {
        self.phase.as_ref().and_then(VolumePluginPhase::outcome)
    }

    /// Progress in the unit of the plugin.
    pub(crate) fn progress(&self) -> String {
        match &self.units {
            Some(units) if self.bytes.is_unknown() => units.to_string(),
            Some(_) | None => self.bytes.to_string(),
        }
    }

    /// Speed while it is running.
    pub(crate) fn rate(&self) -> Option<TransferRate> {
        let ByteProgress { done, total } = self.bytes;
        let total = total.unwrap_or_default();
        if self.outcome().is_some() {
            return None;
        }
        average_rate(
            done.cast_signed(),
            total.cast_signed(),
            self.started.as_ref(),
            self.updated.as_ref(),
        )
    }

    /// Duration, once it has ended.
    pub(crate) fn seconds(&self) -> Option<u64> {
        let (start, end) = (self.started.as_ref()?, self.ended.as_ref()?);
        self.outcome()?;
        u64::try_from(end.0.duration_since(start.0).as_secs()).ok()
    }
}

/// Bytes done, and the total if it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ByteProgress {
    pub(crate) done: u64,
    pub(crate) total: Option<u64>,
}

impl ByteProgress {
    fn from_progress(progress: &VolumePluginProgress) -> Self {
        let non_negative = |bytes: i64| u64::try_from(bytes).unwrap_or_default();
        let total = Some(non_negative(progress.total_bytes)).filter(|total| *total > 0);
        Self { done: non_negative(progress.bytes_done), total }
    }

    /// True if nothing was reported.
    pub(crate) fn is_unknown(self) -> bool {
        self == Self::default()
    }

    /// Completed part, rounded down; never more than 100, whatever a plugin reports.
    pub(crate) fn percent(self) -> Option<u64> {
        let percent = u128::from(self.done) * 100 / u128::from(self.total?);
        Some(u64::try_from(percent).unwrap_or(u64::MAX).min(100))
    }
}

impl fmt::Display for ByteProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let done = BinaryBytes(self.done);
        match (self.total, self.percent()) {
            _ if self.is_unknown() => f.write_str("-"),
            (Some(total), Some(percent)) => {
                write!(f, "{done} of {} ({percent} %)", BinaryBytes(total))
            }
            _ => write!(f, "{done} of -"),
        }
    }
}

/// Other units done, and the total if it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnitProgress {
    pub(crate) name: String,
    pub(crate) done: u64,
    pub(crate) total: Option<u64>,
}

impl UnitProgress {
    fn from_progress(progress: &VolumePluginProgress) -> Option<Self> {
        let VolumePluginProgress { units, units_done, total_units, .. } = progress;
        let non_negative = |count: i64| u64::try_from(count).unwrap_or_default();
        let total = Some(non_negative(*total_units)).filter(|total| *total > 0);
        (!units.is_empty()).then(|| Self {
            name: units.clone(),
            done: non_negative(*units_done),
            total,
        })
    }

    /// Completed part, rounded down; never more than 100.
    pub(crate) fn percent(&self) -> Option<u64> {
        ByteProgress { done: self.done, total: self.total }.percent()
    }
}

impl fmt::Display for UnitProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, done, .. } = self;
        match (self.total, self.percent()) {
            (Some(total), Some(percent)) => write!(f, "{name} {done}/{total} ({percent} %)"),
            _ => write!(f, "{name} {done}/-"),
        }
    }
}

/// Progress of all volumes of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct VolumeTotals {
    pub(crate) total: usize,
    pub(crate) completed: usize,
    pub(crate) failed: usize,
    pub(crate) canceled: usize,
    pub(crate) bytes: ByteProgress,
    /// Totals in other units than bytes, by unit.
    pub(crate) units: BTreeMap<String, ByteProgress>,
}

impl VolumeTotals {
    pub(crate) fn from_volumes(transfers: &[VolumeProgress]) -> Self {
        let mut totals = Self { total: transfers.len(), ..Self::default() };
        let mut total = Some(0_u64);
        for transfer in transfers {
            let ByteProgress { done, total: volume_total } = transfer.bytes;
            let outcome = transfer.outcome();
            match outcome {
                Some(VolumePluginOutcome::Completed) => totals.completed += 1,
                Some(VolumePluginOutcome::Failed) => totals.failed += 1,
                Some(VolumePluginOutcome::Canceled) => totals.canceled += 1,
                None => {}
            }
            if let Some(UnitProgress { name, done, total }) = &transfer.units
                && transfer.bytes.is_unknown()
            {
                let all = totals
                    .units
                    .entry(name.clone())
                    .or_insert(ByteProgress { done: 0, total: Some(0) });
                all.done = all.done.saturating_add(*done);
                all.total = all.total.zip(*total).map(|(all, one)| all.saturating_add(one));
                // Without bytes it contributes nothing, and leaves the totals of the others unchanged.
                continue;
            }
            totals.bytes.done = totals.bytes.done.saturating_add(done);
            // A volume that has ended adds no more.
            let volume_total = volume_total.or(outcome.map(|_| done));
            total = total.zip(volume_total).map(|(total, of)| total.saturating_add(of));
        }
        totals.bytes.total = total.filter(|total| *total > 0);
        totals
    }

    /// Number of ended volumes.
    pub(crate) fn ended(&self) -> usize {
        self.completed + self.failed + self.canceled
    }

    /// Number of volumes in progress.
    pub(crate) fn in_progress(&self) -> usize {
        self.total.saturating_sub(self.ended())
    }

    /// Text that fits into a column.
    pub(crate) fn short_text(&self) -> String {
        let unit_percent =
            || self.units.values().next().filter(|_| self.units.len() == 1)?.percent();
        let percent = if self.bytes.is_unknown() { unit_percent() } else { self.bytes.percent() };
        let percent = percent.map(|percent| format!(" {percent}%"));
        format!("{}/{}{}", self.ended(), self.total, percent.unwrap_or_default())
    }
}

impl fmt::Display for VolumeTotals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} completed", self.completed, self.total)?;
        for (count, state) in [(self.in_progress(), "in progress"), (self.canceled, "canceled")] {
            if count > 0 {
                write!(f, ", {count} {state}")?;
            }
        }
        write!(f, ", {} failed", self.failed)?;
        if !self.bytes.is_unknown() {
            write!(f, ", {}", self.bytes)?;
        }
        for (name, ByteProgress { done, total }) in &self.units {
            let units = UnitProgress { name: name.clone(), done: *done, total: *total };
            write!(f, ", {units}")?;
        }
        Ok(())
    }
}

/// Kind of object in which the work of plugins on volumes is reported.
pub(crate) trait VolumeReport:
    Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned
{
    /// Heading for several of them.
    const HEADING: &'static str;
    /// Key for programs.
    const KEY: &'static str;
    /// Label with the name of the run.
    const LABEL: &'static str;

    /// True if the object may belong to a run, as far as it says so itself. Long names share labels.
    fn may_belong_to(&self, run: &str) -> bool;

    /// True if an object without the label can belong to a run: it may name the run elsewhere, since its plugin has
    /// just created it and the server has not seen it yet.
    const HAS_RUN_FIELD: bool;

    /// True if the object names a run elsewhere than in its labels.
    fn names_run(&self, run: &str) -> bool;

    fn into_progress(self) -> VolumeProgress;
}

impl VolumeReport for VolumePluginBackup {
    const HEADING: &'static str = "Volume Plugin Backups";
    const KEY: &'static str = "volumePluginBackups";
    const LABEL: &'static str = label::BACKUP_NAME;
    const HAS_RUN_FIELD: bool = true;

    fn may_belong_to(&self, run: &str) -> bool {
        self.spec.backup.is_empty() || self.spec.backup == run
    }

    fn names_run(&self, run: &str) -> bool {
        self.spec.backup == run
    }

    fn into_progress(self) -> VolumeProgress {
        let status = self.status.unwrap_or_default();
        VolumeProgress {
            volume: self.spec.volume,
            plugin: self.spec.plugin,
            snapshot: status.snapshot_id,
            phase: status.phase,
            bytes: ByteProgress::from_progress(&status.progress),
            units: UnitProgress::from_progress(&status.progress),
            plugin_specific: self.spec.plugin_specific,
            message: status.message,
            started: status.start_timestamp,
            ended: status.completion_timestamp,
            updated: last_update(&self.metadata),
        }
    }
}

impl VolumeReport for VolumePluginRestore {
    const HEADING: &'static str = "Volume Plugin Restores";
    const KEY: &'static str = "volumePluginRestores";
    const LABEL: &'static str = label::RESTORE_NAME;
    const HAS_RUN_FIELD: bool = false;

    fn may_belong_to(&self, _: &str) -> bool {
        true
    }

    fn names_run(&self, _: &str) -> bool {
        false
    }

    fn into_progress(self) -> VolumeProgress {
        let status = self.status.unwrap_or_default();
        VolumeProgress {
            volume: status.volume_id,
            plugin: self.spec.plugin,
            snapshot: self.spec.snapshot_id,
            phase: status.phase,
            bytes: ByteProgress::from_progress(&status.progress),
            units: UnitProgress::from_progress(&status.progress),
            plugin_specific: self.spec.plugin_specific,
            message: status.message,
            started: status.start_timestamp,
            ended: status.completion_timestamp,
            updated: last_update(&self.metadata),
        }
    }
}

/// Time of the last write to an object.
fn last_update(metadata: &ObjectMeta) -> Option<Time> {
    let entries = metadata.managed_fields.iter().flatten();
    entries.filter_map(|entry| entry.time.clone()).max_by_key(|time| time.0)
}

/// Work of plugins on the volumes of a run, in the order of the volumes' names. Empty with Velero's own definitions.
pub(crate) async fn list_for_run<R: Run>(
    installation: &Installation,
    run: &str,
) -> anyhow::Result<Vec<VolumeProgress>> {
    let labelled = format!("{}={}", R::VolumeReport::LABEL, label::value(run));
    let mut transfers = list_matching::<R::VolumeReport>(installation, &labelled, |report| {
        report.may_belong_to(run)
    })
    .await?;
    if R::VolumeReport::HAS_RUN_FIELD {
        let unlabelled = format!("!{}", R::VolumeReport::LABEL);
        let names_it = |report: &R::VolumeReport| report.names_run(run);
        transfers
            .extend(list_matching::<R::VolumeReport>(installation, &unlabelled, names_it).await?);
    }
    transfers.sort_by(|a, b| (&a.volume, &a.snapshot).cmp(&(&b.volume, &b.snapshot)));
    Ok(transfers)
}

/// Reports that match a selector and a condition.
async fn list_matching<P: VolumeReport>(
    installation: &Installation,
    selector: &str,
    predicate: impl Fn(&P) -> bool,
) -> anyhow::Result<Vec<VolumeProgress>> {
    let api = installation.api::<P>();
    let doing = format!("list the {}s", P::kind(&()));
    let params = ListParams::default().labels(selector);
    let request = async |params: &ListParams| api.list(params).await;
    let select = |report: P| predicate(&report).then(|| report.into_progress());
    pages::list_if_served(installation, &doing, params, request, select).await
}
