//! What travels with a pass: the synchronous loads before it, the saves after it, and the
//! asynchronous loads that no pass waits for.

use std::ops::Range;
use std::sync::Arc;

use super::lines::Lines;
use super::record::{Record, SPARES, Start};
use super::{Accepted, Emitted, PassLog, Placed, Scheduler, Step, Told};
use crate::engine::Terms;
use crate::error::{Error, Kind, Result, bail};
use crate::keys::{Scheme, TokenDigest, Tokens};
use crate::link::{GroupInfo, OPEN_PASSES};
use crate::metadata::{Metadata, Transfers};
use crate::plant::{self, Bug};
use crate::recycle::recycled;

impl Scheduler {
    /// Builds the metadata of the next pass. Steps about requests that are not known are skipped.
    /// All or nothing: an error leaves everything as it was. `Contradiction` when a first report is
    /// not the matched prompt, when pages or positions do not fit what was reported before;
    /// `InvalidArgument` for a request listed twice or a token that the scheme cannot hash.
    pub fn build(&mut self, steps: &[Step<'_>]) -> Result<Arc<Metadata>> {
        self.build_accepting(steps, &[])
    }

    /// [`Scheduler::build`] with reservations that the engine accepts: they become loads, synchronous ones of
    /// their request's step in this pass, asynchronous ones that are reported under the reservation's id. Unknown
    /// and stale ids are skipped. Errors, beyond those of `build`, as of [`Scheduler::allocated`].
    pub fn build_accepting(
        &mut self,
        steps: &[Step<'_>],
        accepted: &[Accepted<'_>],
    ) -> Result<Arc<Metadata>> {
        self.build_from(steps.iter(), accepted)
    }

    /// [`Scheduler::build_accepting`] for a caller whose steps are read as they are needed, and so needs no list of them.
    /// The first that cannot be read makes the pass fail. A clone has to give the same steps.
    pub fn build_from<'a>(
        &mut self,
        steps: impl ExactSizeIterator<Item: Told<'a>> + Clone,
        accepted: &[Accepted<'_>],
    ) -> Result<Arc<Metadata>> {
        self.take_report();
        let groups = self.link.groups();
        let groups = groups.as_deref().unwrap_or_default();
        // Steps are checked against what the acceptances of the same pass say.
        let undo = self.accept(accepted, groups)?;
        let count = steps.len();
        let open = match self.take_plain_steps(steps, groups) {
            Ok(open) => open,
            Err(error) => {
                self.take_back(undo);
                return Err(error);
            }
        };
        self.pass += 1;
        let mut metadata = self.recycler.metadata(
            self.pass,
            self.terms.fingerprint,
            self.terms.hash_bytes() as u32,
        );
        metadata.set_groups(groups.iter().map(|group| group.id));
        let mut log = self.spare_logs.pop().unwrap_or_default();
        log.pass = self.pass;
        log.emitted.clear();
        for (step, place) in &open {
            self.take_step(step, *place, groups, &mut metadata, &mut log)?;
            if is_decoding(step) {
                self.records.begin_line(*place);
            }
        }
        self.open_steps = recycled(open);
        self.keep_log(log);
        self.park(groups.len(), &mut metadata);
        metadata.set_ended(self.ended.drain(..));
        if plant::is(Bug::EndedUntold) {
            metadata.set_ended(std::iter::empty());
        }
        tracing::debug!(
            "pass {}: {} requests, {} blocks to load, {} more for {} that wait for them, {} blocks to save",
            self.pass,
            count,
            metadata.loads().blocks(),
            metadata.parked().blocks(),
            metadata.parked().runs().len(),
            metadata.saves().blocks()
        );
        Ok(Arc::new(metadata))
    }

    /// Takes the steps that are [plain](Record::take_plain), and checks the others, which it answers with the places of
    /// their records. An error leaves everything as it was.
    fn take_plain_steps<'a>(
        &mut self,
        steps: impl ExactSizeIterator<Item: Told<'a>> + Clone,
        groups: &[GroupInfo],
    ) -> Result<Vec<(Step<'a>, u32)>> {
        self.build_calls += 1;
        let mut open = recycled(std::mem::take(&mut self.open_steps));
        // What is there is where the requests of the last pass were.
        self.placed.resize(steps.len(), Placed::default());
        let mut left = steps.clone();
        if let Err(error) = self.take_or_check(&mut left, groups, &mut open) {
            // Of the one that was looked at last, nothing was taken.
            let done = steps.len() - left.len() - 1;
            self.take_plain_back(steps.take(done));
            self.open_steps = recycled(open);
            return Err(error);
        }
        Ok(open)
    }

    /// Adds to `open` what is not plain. After an error the one that it is about was taken out of `steps` last.
    fn take_or_check<'a>(
        &mut self,
        steps: &mut impl ExactSizeIterator<Item: Told<'a>>,
        groups: &[GroupInfo],
        open: &mut Vec<(Step<'a>, u32)>,
    ) -> Result<()> {
        let (terms, call) = (&self.terms, self.build_calls);
        let plain = self.records.plain();
        let mut placed = self.placed.iter_mut();
        while let Some((step, placed)) =
            take_decodings(self.records.lines(), steps, &mut placed, call)
        {
            let id = step.request_id();
            // Also one that nobody knows has to be a step.
            let step = step.read()?;
            placed.is_plain = false;
            let Some(visit) = self.records.visit(id, placed.record) else {
                continue;
            };
            if std::mem::replace(visit.seen_in, call) == call {
                return Err(listed_twice(id));
            }
            placed.record = visit.place;
            placed.is_plain = visit.record.take_plain(&step, plain);
            if !placed.is_plain {
                check_step(terms, &step, visit.record, groups)?;
                open.push((step, visit.place));
            } else if is_decoding(&step) {
                self.records.begin_line(placed.record);
            }
        }
        Ok(())
    }

    /// As if these steps, of which the plain ones were taken, had not come.
    fn take_plain_back<'a>(&mut self, steps: impl Iterator<Item: Told<'a>>) {
        let plain = self.records.plain();
        for (step, placed) in steps.zip(&self.placed) {
            if placed.is_plain
                && let Ok(step) = step.read()
                && let Some(record) = self.records.at(placed.record)
            {
                record.take_plain_back(step.new_tokens.len(), plain);
            }
        }
    }

    fn keep_log(&mut self, log: PassLog) {
        self.logs.push_back(log);
        if self.logs.len() > OPEN_PASSES
            && let Some(oldest) = self.logs.pop_front()
        {
            self.spare_logs.push(oldest);
        }
    }

    /// Asynchronous loads that were settled since the last build; each travels once.
    fn park(&mut self, groups: usize, metadata: &mut Metadata) {
        if groups == 0 {
            // The pages they name lie in a layout that is gone for now.
            return;
        }
        for id in self.to_park.drain(..) {
            let Some(record) = self.records.get_mut(&id) else {
                continue;
            };
            let Some(load) = &mut record.load else {
                continue;
            };
            if !load.is_async || std::mem::replace(&mut load.emitted, true) {
                continue;
            }
            let blocks = load.blocks.clone();
            record.loaded = blocks.clone();
            emit(metadata.parked_mut(), record, id, groups, blocks);
            if let Some(reservation) = record.reservation() {
                metadata.parked_mut().set_ticket(reservation);
            }
        }
    }

    /// Applies a step that [`check_step`] accepted.
    fn take_step(
        &mut self,
        step: &Step<'_>,
        place: u32,
        groups: &[GroupInfo],
        metadata: &mut Metadata,
        log: &mut PassLog,
    ) -> Result<()> {
        let (size, hashes) = (self.block_tokens(), self.records.plain().hashes);
        let pass = self.pass;
        let Some(record) = self.records.at(place) else {
            return Ok(());
        };
        match record.start.take() {
            None => {
                record.tokens += step.new_tokens.len() as u64;
                if hashes {
                    record.chain.extend(step.new_tokens)?;
                }
            }
            // Whatever its reservation still holds is stale.
            Some(start) => {
                if let Some(reservation) = start.reservation {
                    self.reservations.remove(&reservation);
                }
                if self.spare_starts.len() < SPARES {
                    self.spare_starts.push(start);
                }
            }
        }
        record.sits_out |= groups.is_empty() && !step.pages.is_empty();
        if record.sits_out {
            return Ok(());
        }
        record.enter_pages(step.pages, groups);

        let mut restored = 0;
        let mut emitted_load = false;
        if let Some(load) = &mut record.load {
            let tokens = load.tokens(size);
            if !load.is_async && step.computed_position == tokens.start {
                load.emitted = true;
                let blocks = load.blocks.clone();
                restored = tokens.end - tokens.start;
                record.loaded = blocks.clone();
                emit(
                    metadata.loads_mut(),
                    record,
                    step.request_id,
                    groups.len(),
                    blocks,
                );
                emitted_load = true;
                // On some rank the pool may still write when the load has failed there.
                record.ever_saved |= self.terms.direct && !plant::is(Bug::LentUnpinned);
            } else {
                record.load = None;
            }
        }
        let mut saved_up_to = None;
        if self.terms.role.writes() && !record.spoilt {
            let tokens = step.computed_position + restored + step.scheduled_tokens;
            let mut frontier = tokens / size;
            // Most steps complete no block: they need not look any further.
            if plant::is(Bug::PagesCount) {
                frontier = u64::MAX;
            }
            let counted = frontier;
            if frontier > u64::from(record.confirmed) {
                frontier = frontier
                    .min(record.chain.block_count() as u64)
                    .min(record.paged_blocks(groups.len()));
            }
            let frontier = u32::try_from(frontier).unwrap_or(u32::MAX);
            if frontier > record.confirmed {
                emit_saves(
                    metadata.saves_mut(),
                    record,
                    step.request_id,
                    groups.len(),
                    frontier,
                    pass,
                );
                saved_up_to = Some(frontier);
                if plant::is(Bug::DraftsCounted) {
                    saved_up_to = u32::try_from(counted).ok();
                }
                if plant::is(Bug::WatermarkAtBuild) {
                    record.confirmed = frontier;
                }
            }
        }
        if emitted_load || saved_up_to.is_some() {
            log.emitted.push(Emitted {
                request_id: step.request_id,
                generation: record.generation,
                saved_up_to,
                load: emitted_load,
            });
        }
        Ok(())
    }
}

#[cold]
fn listed_twice(id: u64) -> Error {
    let message = format!("request {id} has two steps in one pass");
    Error::new(Kind::InvalidArgument, message)
}

/// The next step of its request may well be one that its line takes.
fn is_decoding(step: &Step<'_>) -> bool {
    matches!(step.new_tokens, Tokens::I32([_]))
}

/// Takes steps as long as each is of a decoding request that lies where it lay in the last pass. The first that is not,
/// or not plain, is answered, and nothing of it was taken.
// Apart, since the few values it needs then stay in registers: it is what most passes do with all of their steps.
#[inline(never)]
fn take_decodings<'a, 'p, T: Told<'a>>(
    lines: &mut Lines,
    steps: &mut impl Iterator<Item = T>,
    placed: &mut std::slice::IterMut<'p, Placed>,
    call: u64,
) -> Option<(T, &'p mut Placed)> {
    loop {
        let (step, placed) = (steps.next()?, placed.next()?);
        let taken = step
            .decoding()
            .is_some_and(|decoding| lines.take(placed.record, step.request_id(), &decoding, call));
        if !taken {
            return Some((step, placed));
        }
        placed.is_plain = true;
    }
}

/// Holds a step against what is known; changes nothing.
fn check_step(terms: &Terms, step: &Step<'_>, record: &Record, groups: &[GroupInfo]) -> Result<()> {
    let size = u64::from(terms.tokens_per_block);
    let (id, position) = (step.request_id, step.computed_position);
    let known = if let Some(start) = &record.start {
        check_first_report(record, start, id, step.new_tokens)?;
        record.tokens
    } else {
        check_tokens(terms.scheme, id, step.new_tokens)?;
        if !step.new_tokens.is_empty() && position < record.prompt_tokens {
            bail!(
                Contradiction,
                "request {id}: {} new tokens at computed_position = {position}, before the prompt of {} tokens is computed; a report counts once build answered, also when its pass never ran",
                step.new_tokens.len(),
                record.prompt_tokens
            );
        }
        record.tokens + step.new_tokens.len() as u64
    };
    if position > known {
        bail!(
            Contradiction,
            "request {id}: computed_position = {position}, but only {known} tokens were reported"
        );
    }
    if known / size > u64::from(u32::MAX) {
        bail!(
            OutOfRange,
            "request {id}: {known} tokens have more than 2^32 blocks"
        );
    }
    if record.load.is_some() && groups.is_empty() {
        bail!(
            BadState,
            "request {id}: its pages are to be loaded, but no layout is registered; reset it"
        );
    }
    let restored = match &record.load {
        None => 0,
        Some(load) if load.is_async => {
            if !load.counts && !plant::is(Bug::ParkedRuns) {
                bail!(
                    Contradiction,
                    "request {id}: its asynchronous load was not reported yet; until then it waits outside the batch"
                );
            }
            0
        }
        Some(load) => {
            let Range { start, end } = load.tokens(size);
            if position == start {
                end - start
            } else if position < end {
                bail!(
                    Contradiction,
                    "request {id}: computed_position = {position}, but tokens {start} … {end} are loaded from the pool: before the load it is {start}"
                );
            } else if !load.counts {
                bail!(
                    Contradiction,
                    "request {id}: computed_position = {position} counts the tokens {start} … {end}, whose load was never started"
                );
            } else {
                0
            }
        }
    };
    if position
        .checked_add(restored)
        .and_then(|sum| sum.checked_add(step.scheduled_tokens))
        .is_none()
    {
        bail!(
            OutOfRange,
            "request {id}: scheduled_tokens = {} overflows",
            step.scheduled_tokens
        );
    }
    if record.sits_out || groups.is_empty() {
        return Ok(());
    }
    record.check_pages(id, step.pages, groups)
}

/// Everything between the watermark and the frontier, and the blocks whose put failed.
fn emit_saves(
    saves: &mut Transfers,
    record: &mut Record,
    id: u64,
    groups: usize,
    frontier: u32,
    pass: u64,
) {
    let before = saves.runs().len();
    let mut retries = std::mem::take(&mut record.retries);
    // What is not confirmed is emitted below in any case.
    retries.retain(|retry| retry.block < record.confirmed);
    for retry in &mut retries {
        if record.has_pages(groups, retry.block) {
            emit(saves, record, id, groups, retry.block..retry.block + 1);
            retry.emitted_in = Some(pass);
        }
    }
    record.retries = retries;
    let mut block = record.confirmed;
    while block < frontier {
        let wanted = |block: u32| {
            !is_loaded(record, block)
                && (record.has_pages(groups, block) || plant::is(Bug::MinusOne))
        };
        let start = (block..frontier)
            .find(|&block| wanted(block))
            .unwrap_or(frontier);
        let end = (start..frontier)
            .find(|&block| !wanted(block))
            .unwrap_or(frontier);
        if start < end {
            emit(saves, record, id, groups, start..end);
        }
        block = end;
    }
    record.ever_saved |= saves.runs().len() > before;
}

/// Blocks that came from the pool are there already.
fn is_loaded(record: &Record, block: u32) -> bool {
    record.loaded.contains(&block) && !plant::is(Bug::LoadedWrittenBack)
}

/// Appends one run of blocks that all have a page in every group.
fn emit(transfers: &mut Transfers, record: &Record, id: u64, groups: usize, blocks: Range<u32>) {
    let parent = record
        .chain
        .parent(blocks.start as usize)
        .unwrap_or_default();
    transfers.begin_run(id, record.generation, blocks.start, parent);
    for block in blocks {
        let Some(hash) = record.chain.hash(block as usize) else {
            return;
        };
        transfers.push_block(
            hash,
            (0..groups).map(|position| record.page(position, block).unwrap_or(-1)),
        );
    }
}

fn check_first_report(record: &Record, start: &Start, id: u64, tokens: Tokens<'_>) -> Result<()> {
    let mut digest = TokenDigest::new();
    digest.extend(tokens);
    if digest.count() != record.prompt_tokens || digest.value() != start.prompt_digest {
        bail!(
            Contradiction,
            "request {id}: the first report has {} tokens that are not the prompt of {} tokens it was matched with",
            digest.count(),
            record.prompt_tokens
        );
    }
    Ok(())
}

/// What [`crate::keys::Chain::extend`] would refuse is found before anything changes.
fn check_tokens(scheme: Scheme, id: u64, tokens: Tokens<'_>) -> Result<()> {
    if let (Scheme::Kvb1, Tokens::I64(tokens)) = (scheme, tokens)
        && let Some(token) = tokens.iter().find(|&&token| i32::try_from(token).is_err())
    {
        bail!(
            InvalidArgument,
            "request {id}: token {token} does not fit 32 bits, as kvb1 keys need"
        );
    }
    Ok(())
}
