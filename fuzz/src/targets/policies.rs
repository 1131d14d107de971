//! Resource policies: YAML that a user writes, applied to any volume.
//!
//! Three parts: the document, the PersistentVolume, the claim.

use std::collections::BTreeMap;

use bowline_engine::backup::policy::{Policies, VolumeFacts};

use super::texts;

pub(super) fn run(input: &[u8]) {
    let Some([document, volume, claim]) = texts(input) else { return };
    let data: BTreeMap<_, _> = [("policy".to_owned(), document.to_owned())].into();
    let policies = match Policies::parse(&data) {
        Ok(policies) => policies,
        Err(error) => {
            let message = error.to_string();
            assert!(message.len() <= 4 * input.len() + 4096, "{} bytes", message.len());
            return;
        }
    };
    let claim = serde_json::from_str(claim).ok();
    let volume = serde_json::from_str(volume).unwrap_or_default();
    let facts = VolumeFacts::of_persistent_volume(&volume, claim.as_ref());
    assert_eq!(policies.action_for(&facts), policies.action_for(&facts.clone()));
    if let Some(claim) = &claim {
        let facts = VolumeFacts::of_claim(claim);
        assert_eq!(policies.action_for(&facts), policies.action_for(&facts.clone()));
    }
}
