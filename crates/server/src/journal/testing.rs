//! Journals without a cluster, for fuzz targets.

use std::collections::BTreeMap;

use bowline_engine::journal::JournalEntry;
use bowline_store::name::RunUid;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::ConfigMap;

use super::page::{self, JournalId};
use super::{Error, pack};

/// A journal whose pages are at hand.
#[derive(Clone, Debug)]
pub struct Pages(JournalId);

impl Pages {
    /// Journal of a run.
    pub fn new(run: &RunUid, kind: &str, name: &str) -> Self {
        Self(JournalId { run: run.clone(), kind: kind.to_owned(), name: name.to_owned() })
    }

    /// Records of all pages, as the server reads them to resume a run.
    pub fn read(&self, pages: Vec<ConfigMap>) -> Result<Vec<JournalEntry>, Error> {
        Ok(self.0.read(pages)?.records)
    }

    /// Readable records, as the server reads them to thaw pods.
    pub fn salvage(&self, pages: Vec<ConfigMap>) -> Vec<JournalEntry> {
        self.0.salvage(pages).records
    }

    /// Page with these records under their numbers, packed or not. None if a record is too large.
    pub fn page(
        &self,
        number: usize,
        records: &[JournalEntry],
        is_packed: bool,
    ) -> Option<ConfigMap> {
        let texts = records
            .iter()
            .enumerate()
            .map(|(index, record)| page::encode(record).map(|text| (format!("{index:08}"), text)));
        let texts: BTreeMap<String, String> = texts.collect::<Result<_, _>>().ok()?;
        if !is_packed {
            return Some(self.0.page(number, "writer", texts));
        }
        let mut packed_page = self.0.page(number, "writer", BTreeMap::new());
        let bytes = ByteString(pack::pack(&texts).ok()?);
        packed_page.binary_data = Some([(pack::KEY.to_owned(), bytes)].into());
        Some(packed_page)
    }
}
