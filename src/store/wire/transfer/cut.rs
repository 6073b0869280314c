//! How jobs are cut into requests: one for several that lie behind one another, or several for a long one.

use std::collections::VecDeque;
use std::ops::Range;

use super::job::Job;

/// What one request is about: jobs that lie behind one another, or a part of one job.
#[derive(Debug, Clone)]
pub(super) struct Frame {
    pub jobs: Range<usize>,
    /// Where in the first job's range it begins.
    pub from: u64,
    pub size: u64,
    /// It ends where its last job does.
    pub is_last: bool,
}

impl Frame {
    /// What is left of it when so many of its bytes are behind.
    pub fn part(&self, done: u64) -> Part {
        Part {
            skip: self.from + done,
            left: self.size.saturating_sub(done),
        }
    }
}

/// What is left of a frame, to be cut at the ends of its jobs.
pub(super) struct Part {
    /// Bytes that are left out, of this job and those behind it.
    skip: u64,
    left: u64,
}

impl Part {
    /// What the next job has of it, as it counts; `None` where that is nothing.
    pub fn of_next(&mut self, size: u64) -> Option<Range<u64>> {
        let from = self.skip.min(size);
        self.skip -= from;
        let until = size.min(from.saturating_add(self.left));
        self.left -= until - from;
        (from < until).then_some(from..until)
    }
}

/// Jobs that no connection carries yet, in the order of their addresses, but for those that are tried again.
#[derive(Debug)]
pub(super) struct Waiting<'j, J> {
    pub jobs: VecDeque<&'j mut J>,
    /// Each is asked for by itself: an owner rejected a request that was about several.
    pub apart: bool,
}

impl<'j, J: Job> Waiting<'j, J> {
    /// Takes jobs of so many bytes, or a little more.
    pub fn share(&mut self, bytes: u64) -> Vec<&'j mut J> {
        let (mut part, mut taken) = (Vec::new(), 0_u64);
        while taken < bytes
            && let Some(job) = self.jobs.pop_front()
        {
            taken = taken.saturating_add(job.size());
            part.push(job);
        }
        part
    }

    /// Takes the first job and those that one request may be about with it: they begin where the one before ends, and are
    /// not longer than `most` together.
    pub fn next(&mut self, most: u64, into: &mut Vec<&'j mut J>) {
        let Some(first) = self.jobs.pop_front() else {
            return;
        };
        let (mut end, mut left) = (
            first.address() + first.size(),
            most.saturating_sub(first.size()),
        );
        into.push(first);
        while !self.apart
            && let Some(next) = self.jobs.front()
            && next.address() == end
            && next.size() <= left
            && let Some(next) = self.jobs.pop_front()
        {
            end += next.size();
            left -= next.size();
            into.push(next);
        }
    }
}
