//! Conditions of a policy on volumes. All of them must match.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::InvalidPolicies;
use super::volume::{self, Csi, Nfs, VolumeFacts};
use crate::quantity;

/// Conditions as they are written.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ConditionsDocument {
    capacity: Option<String>,
    storage_class: Option<Vec<String>>,
    nfs: Option<NfsDocument>,
    csi: Option<CsiDocument>,
    volume_types: Option<Vec<String>>,
    pvc_labels: Option<BTreeMap<String, String>>,
    pvc_phase: Option<Vec<String>>,
    pvc_volume_mode: Option<String>,
    pvc_access_modes: Option<Vec<String>>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct NfsDocument {
    server: Option<String>,
    path: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
struct CsiDocument {
    driver: Option<String>,
    volume_attributes: Option<BTreeMap<String, String>>,
}

/// Conditions. An empty one matches every volume.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Conditions {
    capacity: Capacity,
    storage_classes: Vec<String>,
    nfs: Option<Nfs>,
    csi: Option<Csi>,
    volume_types: Vec<String>,
    pvc_labels: BTreeMap<String, String>,
    pvc_phases: Vec<String>,
    pvc_volume_mode: String,
    pvc_access_modes: BTreeSet<String>,
}

/// From one number of bytes to another, both included. Zero is an open bound, as in Velero.
#[derive(Clone, Debug, PartialEq)]
struct Capacity {
    text: String,
    from: u64,
    to: u64,
}

impl ConditionsDocument {
    /// Parses the conditions. One that nothing can match is a warning.
    pub(super) fn read(self, warnings: &mut Vec<String>) -> Result<Conditions, InvalidPolicies> {
        let volume_types = self.volume_types.unwrap_or_default();
        for unknown in volume_types.iter().filter(|name| !volume::is_type(name)) {
            warnings.push(format!(
                "the resource policy has the volume type {unknown}, which no volume has"
            ));
        }
        let nfs = |nfs: NfsDocument| Nfs {
            server: nfs.server.unwrap_or_default(),
            path: nfs.path.unwrap_or_default(),
        };
        let csi = |csi: CsiDocument| Csi {
            driver: csi.driver.unwrap_or_default(),
            attributes: csi.volume_attributes.unwrap_or_default(),
        };
        Ok(Conditions {
            capacity: Capacity::read(self.capacity.unwrap_or_default())?,
            storage_classes: self.storage_class.unwrap_or_default(),
            nfs: self.nfs.map(nfs),
            csi: self.csi.map(csi),
            volume_types,
            pvc_labels: self.pvc_labels.unwrap_or_default(),
            pvc_phases: self.pvc_phase.unwrap_or_default(),
            pvc_volume_mode: self.pvc_volume_mode.unwrap_or_default(),
            pvc_access_modes: self.pvc_access_modes.into_iter().flatten().collect(),
        })
    }
}

impl Conditions {
    /// Refuses conditions that can never match.
    pub(super) fn check(&self) -> Result<(), InvalidPolicies> {
        if self.capacity.to != 0 && self.capacity.to < self.capacity.from {
            return Err(InvalidPolicies::EmptyRange(self.capacity.text.clone()));
        }
        match &self.csi {
            Some(csi) if csi.driver.is_empty() && !csi.attributes.is_empty() => {
                Err(InvalidPolicies::NoDriver)
            }
            _ => Ok(()),
        }
    }

    /// True if all of them match.
    pub(super) fn fit(&self, volume: &VolumeFacts) -> bool {
        self.capacity.has(volume.capacity)
            && is_among(&volume.storage_class, &self.storage_classes)
            && self.nfs.as_ref().is_none_or(|asked| fits_nfs(asked, volume.nfs.as_ref()))
            && self.csi.as_ref().is_none_or(|asked| fits_csi(asked, volume.csi.as_ref()))
            && is_among(volume.volume_type.unwrap_or_default(), &self.volume_types)
            && has_all(&volume.pvc_labels, &self.pvc_labels)
            && is_among(&volume.pvc_phase, &self.pvc_phases)
            && (self.pvc_volume_mode.is_empty() || self.pvc_volume_mode == volume.pvc_volume_mode)
            && (self.pvc_access_modes.is_empty()
                || self.pvc_access_modes == volume.pvc_access_modes)
    }
}

impl Capacity {
    fn read(text: String) -> Result<Self, InvalidPolicies> {
        let side = |side: &str| match side.trim() {
            "" => Ok(0),
            side => quantity::bytes(side)
                .map_err(|source| InvalidPolicies::Quantity { capacity: text.clone(), source }),
        };
        let (from, to) = match text.split(',').collect::<Vec<_>>().as_slice() {
            [""] => (0, 0),
            [from, to] => (side(from)?, side(to)?),
            _ => return Err(InvalidPolicies::Capacity(text)),
        };
        Ok(Self { text, from, to })
    }

    fn has(&self, bytes: u64) -> bool {
        self.from <= bytes && (self.to == 0 || bytes <= self.to)
    }
}

/// True if a value is one of the wanted ones, or none is wanted. An empty value never matches a wanted one.
fn is_among(value: &str, wanted: &[String]) -> bool {
    wanted.is_empty() || (!value.is_empty() && wanted.iter().any(|one| one == value))
}

fn fits_nfs(wanted: &Nfs, found: Option<&Nfs>) -> bool {
    let fits = |asked: &String, found: &String| asked.is_empty() || asked == found;
    found
        .is_some_and(|found| fits(&wanted.server, &found.server) && fits(&wanted.path, &found.path))
}

fn fits_csi(wanted: &Csi, found: Option<&Csi>) -> bool {
    found.is_some_and(|found| {
        (wanted.driver.is_empty() || wanted.driver == found.driver)
            && has_all(&found.attributes, &wanted.attributes)
    })
}

fn has_all(found: &BTreeMap<String, String>, wanted: &BTreeMap<String, String>) -> bool {
    wanted.iter().all(|(key, value)| found.get(key) == Some(value))
}
