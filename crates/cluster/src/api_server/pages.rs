//! Lists, page by page and object by object.
//!
//! A list can be larger than memory, and its reader slower than the API server: so only requested
//! data is read, and a page that breaks off is read again from its beginning, without the previous
//! pages.

use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt as _;
use futures::stream::{self, BoxStream};
use kube::client::Body;

use super::super::list_splitter::{NotAList, Splitter};
use super::super::{Announce, Error, Query, Result};
use super::retry::{FailedAttempt, RetryBudget, RetryHint};
use super::{ApiServer, next_bytes, path_of, segment};
use crate::item::Object;
use crate::resource::Resource;

/// Source of a list.
pub(super) struct ListSource {
    pub(super) server: ApiServer,
    pub(super) resource: Arc<Resource>,
    pub(super) query: Query,
}

/// Lists objects.
pub(super) fn list(source: ListSource, announce: Announce) -> BoxStream<'static, Result<Object>> {
    let retry_budget = RetryBudget::new(source.server.max_outage);
    let next = Some(String::new());
    let pages = Pages { source, page: None, next, read: 0, max_read: 0, retry_budget, announce };
    stream::unfold(Some(pages), async |pages| {
        let mut pages = pages?;
        match pages.next_object().await {
            Ok(Some(object)) => Some((Ok(object), Some(pages))),
            Ok(None) => None,
            // One bad object does not hide the others.
            Err(error @ Error::Object(_)) => Some((Err(error), Some(pages))),
            Err(error) => Some((Err(error), None)),
        }
    })
    .boxed()
}

/// List in progress.
struct Pages {
    source: ListSource,
    page: Option<Page>,
    /// Token of the current or next page; `None` after the last page.
    next: Option<String>,
    /// Number of objects that this attempt has read of the page with that token.
    read: usize,
    /// Maximum over all attempts.
    max_read: usize,
    retry_budget: RetryBudget,
    announce: Announce,
}

struct Page {
    body: Body,
    splitter: Splitter,
}

impl Pages {
    async fn next_object(&mut self) -> Result<Option<Object>> {
        loop {
            let Some(page) = &mut self.page else {
                let Some(token) = self.next.clone() else { return Ok(None) };
                match self.source.open_page(&token).await {
                    Ok(page) => (self.page, self.read) = (Some(page), 0),
                    Err(failed) => self.recover(failed).await?,
                }
                continue;
            };
            let step = page.step().await;
            match step {
                Ok(Step::Object(json)) => {
                    if self.read == 0
                        && let Some(after) = page.splitter.remaining()
                    {
                        // A page that is followed by others is full.
                        let page_size = u64::from(self.source.server.page_size);
                        (self.announce)(after.saturating_add(page_size));
                    }
                    self.read += 1;
                    if self.read > self.max_read {
                        self.max_read = self.read;
                        self.retry_budget.reset();
                    }
                    return Ok(Some(Object::from_json(&self.source.resource, json)?));
                }
                Ok(Step::End) => {
                    if let Err(failed) = self.end_page() {
                        self.recover(failed).await?;
                    }
                }
                Err(error) => {
                    self.page = None;
                    self.recover(error.into()).await?;
                }
            }
        }
    }

    fn end_page(&mut self) -> Result<(), FailedAttempt> {
        let Some(page) = self.page.take() else { return Ok(()) };
        let frame = page.splitter.finish().map_err(|error| {
            // The connection may have ended before the page did.
            let retry_hint =
                if error == NotAList::Cut { RetryHint::WhenReachable } else { RetryHint::Never };
            FailedAttempt { error: Error::Unreadable(error.to_string()), retry_hint }
        })?;
        let token = frame.metadata.continue_token;
        if !token.is_empty() && self.next.as_ref() == Some(&token) {
            let text = "the API server returned the same continue token again".to_owned();
            return Err(Error::Unreadable(text).into());
        }
        self.next = Some(token).filter(|token| !token.is_empty());
        self.max_read = 0;
        self.retry_budget.reset();
        Ok(())
    }

    /// Prepares another attempt after a page failed, or gives up.
    async fn recover(&mut self, failed: FailedAttempt) -> Result<()> {
        let resource = &self.source.resource.id;
        if let Error::Expired { next: Some(token) } = &failed.error {
            tracing::info!(%resource, "the continue token has expired; continuing the list with \
                                       newer objects");
            self.next = Some(token.clone());
            self.max_read = 0;
        } else {
            tracing::debug!(%resource, "a page failed: {}", failed.error);
        }
        self.retry_budget.wait_or_give_up(failed).await
    }
}

impl ListSource {
    async fn open_page(&self, token: &str) -> Result<Page, FailedAttempt> {
        let mut path = path_of(&self.resource, self.query.namespace.as_deref());
        let mut separator = '?';
        let limit = match self.server.page_size {
            0 => String::new(),
            size => size.to_string(),
        };
        for (name, value) in [
            ("limit", limit.as_str()),
            ("continue", token),
            ("labelSelector", self.query.label_selector.as_str()),
            ("fieldSelector", self.query.field_selector.as_str()),
        ] {
            if !value.is_empty() {
                path.push(separator);
                path.push_str(name);
                path.push('=');
                path.push_str(&segment(value));
                separator = '&';
            }
        }
        let response = self.server.get_once(&path).await?;
        let splitter = Splitter::new(&self.resource.api_version(), &self.resource.kind);
        Ok(Page { body: response.into_body(), splitter })
    }
}

enum Step {
    Object(Bytes),
    End,
}

impl Page {
    async fn step(&mut self) -> Result<Step> {
        loop {
            let found = self.splitter.next_object();
            if let Some(json) = found.map_err(|error| Error::Unreadable(error.to_string()))? {
                return Ok(Step::Object(json));
            }
            match next_bytes(&mut self.body).await? {
                Some(bytes) => self.splitter.push(&bytes),
                None => return Ok(Step::End),
            }
        }
    }
}
