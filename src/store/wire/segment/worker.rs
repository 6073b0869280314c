//! The threads that serve a segment.

use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::SocketFlags;

use super::greeting::Greeting;
use super::session::Session;
use super::{Lent, Limits};
use crate::store::wire::socket::Socket;
use crate::sync::{Arc, AtomicBool, Mutex, Ordering};

/// How long nothing is accepted after the system could not give a connection.
const PAUSE: Duration = Duration::from_millis(100);
/// Connections that are accepted before those that stand get their turn.
const ACCEPTED: usize = 32;

/// What others see of a thread.
#[derive(Debug)]
pub(super) struct Post {
    wake: OwnedFd,
    /// Connections that it shall serve.
    new: Mutex<Vec<Socket>>,
    /// How many it has.
    load: AtomicUsize,
}

impl Post {
    /// The post of a thread that is still to start. Errors: the system's.
    pub fn new() -> std::io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self {
            wake: rustix::event::eventfd(0, flags)?,
            new: Mutex::new(Vec::new()),
            load: AtomicUsize::new(0),
        })
    }

    /// Ends the thread's wait.
    pub fn wake(&self) {
        // A counter that is full wakes as well.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    /// Closes connections that the thread did not come to serve.
    pub fn clear(&self) {
        self.new.lock().clear();
    }

    fn give(&self, socket: Socket) {
        self.load.fetch_add(1, Ordering::Relaxed);
        self.new.lock().push(socket);
        self.wake();
    }
}

/// What all threads of a segment share.
#[derive(Debug)]
pub(super) struct House {
    pub lent: Arc<Lent>,
    pub limits: Limits,
    pub posts: Vec<Post>,
    pub ends: AtomicBool,
}

/// The doors, which one thread keeps.
#[derive(Debug)]
pub(super) struct Doors {
    pub greetings: TcpListener,
    pub data: TcpListener,
}

/// One thread's work.
pub(super) struct Worker {
    house: Arc<House>,
    place: usize,
    doors: Option<Doors>,
    shut_until: Option<Instant>,
    greetings: Vec<Greeting>,
    sessions: Vec<Session>,
}

impl Worker {
    /// The work of the thread at this post; with doors for one of them.
    pub fn new(house: Arc<House>, place: usize, doors: Option<Doors>) -> Self {
        Self {
            house,
            place,
            doors,
            shut_until: None,
            greetings: Vec::new(),
            sessions: Vec::new(),
        }
    }

    /// Serves until the house ends.
    pub fn run(mut self) {
        let house = Arc::clone(&self.house);
        let Some(post) = house.posts.get(self.place) else {
            return;
        };
        while !house.ends.load(Ordering::Acquire) {
            let ready = self.wait(post);
            let now = Instant::now();
            self.serve(ready, now);
            self.let_go(now);
            for socket in std::mem::take(&mut *post.new.lock()) {
                self.admit(socket, now);
            }
            post.load.store(self.sessions.len(), Ordering::Relaxed);
        }
    }

    /// Waits until something can be done; which sockets are ready, in the order of doors, greetings, sessions.
    fn wait(&self, post: &Post) -> Vec<bool> {
        let doors = self.doors.as_ref().filter(|_| self.shut_until.is_none());
        let listening = PollFlags::IN;
        let mut wanted: Vec<(BorrowedFd<'_>, PollFlags)> = vec![(post.wake.as_fd(), listening)];
        if let Some(doors) = doors {
            wanted.push((doors.greetings.as_fd(), listening));
            wanted.push((doors.data.as_fd(), listening));
        }
        wanted.extend(self.greetings.iter().map(Greeting::wants));
        wanted.extend(self.sessions.iter().map(Session::wants));
        let mut polled: Vec<PollFd<'_>> = wanted
            .iter()
            .map(|(socket, wants)| PollFd::from_borrowed_fd(*socket, *wants))
            .collect();
        // Only what may have to be ended or opened needs a look in between.
        let wait = match (self.shut_until, self.is_at_work()) {
            (Some(_), _) => Some(PAUSE),
            (None, true) => Some(self.house.limits.stall.min(Duration::from_secs(1))),
            (None, false) => None,
        };
        let wait = wait.and_then(|it| Timespec::try_from(it).ok());
        match rustix::event::poll(&mut polled, wait.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            // Without memory for the call; nothing here would get better by trying at once.
            Err(_) => std::thread::sleep(PAUSE),
        }
        let mut ready: Vec<bool> = polled.iter().map(|it| !it.revents().is_empty()).collect();
        if ready.first() == Some(&true) {
            let _ = rustix::io::read(&post.wake, &mut [0_u8; 8]);
        }
        ready.remove(0);
        if doors.is_none() {
            ready.splice(0..0, [false; 2]);
        }
        ready
    }

    fn is_at_work(&self) -> bool {
        !self.greetings.is_empty() || self.sessions.iter().any(|it| !it.is_idle())
    }

    fn serve(&mut self, ready: Vec<bool>, now: Instant) {
        let mut ready = ready.into_iter();
        let (greets, comes) = (ready.next() == Some(true), ready.next() == Some(true));
        let lent = &self.house.lent;
        let mut is_ready = || ready.next().unwrap_or(false);
        self.greetings
            .retain_mut(|greeting| !is_ready() || greeting.step(lent).is_ok());
        self.sessions
            .retain_mut(|session| !is_ready() || session.step(lent, now).is_ok());
        if self.shut_until.is_some_and(|until| now >= until) {
            self.shut_until = None;
        }
        if let Some(doors) = self.doors.take() {
            if greets {
                self.accept(&doors.greetings, now, |this, socket| {
                    if this.greetings.len() >= this.house.limits.greetings.max(1) {
                        // The oldest: nobody needs that long.
                        this.greetings.remove(0);
                    }
                    this.greetings.push(Greeting::new(socket, now));
                });
            }
            if comes {
                self.accept(&doors.data, now, |this, socket| {
                    let posts = this.house.posts.iter();
                    let idlest = posts.min_by_key(|post| post.load.load(Ordering::Relaxed));
                    if let Some(post) = idlest {
                        post.give(socket);
                    }
                });
            }
            self.doors = Some(doors);
        }
    }

    fn accept(
        &mut self,
        door: &TcpListener,
        now: Instant,
        mut admit: impl FnMut(&mut Self, Socket),
    ) {
        for _ in 0..ACCEPTED {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            match rustix::net::accept_with(door, flags) {
                Ok(handle) => admit(self, Socket::accepted(handle)),
                Err(Errno::AGAIN) => return,
                // The connection is gone already.
                Err(Errno::CONNABORTED | Errno::INTR | Errno::PROTO) => {}
                // Out of handles or memory, which trying again at once does not change.
                Err(_) => {
                    self.shut_until = Some(now + PAUSE);
                    return;
                }
            }
        }
    }

    /// Takes a connection, if there are too many in place of the one that was idle for the longest time, or stood still:
    /// otherwise a few bytes a minute on each would keep everybody else out.
    fn admit(&mut self, socket: Socket, now: Instant) {
        let most = self
            .house
            .limits
            .connections
            .div_ceil(self.house.posts.len());
        if self.sessions.len() >= most {
            let crowded = self.house.limits.crowded;
            let gives_way = |session: &Session| {
                session.is_idle() || now.saturating_duration_since(session.moved()) >= crowded
            };
            let sessions = self.sessions.iter().enumerate();
            let sessions = sessions.filter(|(_, session)| gives_way(session));
            let order = |session: &Session| (!session.is_idle(), session.moved());
            let Some((oldest, _)) = sessions.min_by_key(|(_, session)| order(session)) else {
                tracing::warn!(
                    most,
                    "a connection to the lent memory was refused: there are too many"
                );
                return;
            };
            self.sessions.swap_remove(oldest);
        }
        self.sessions.push(Session::new(socket, now));
    }

    /// Ends connections that stand still in the middle of something.
    fn let_go(&mut self, now: Instant) {
        let stall = self.house.limits.stall;
        let is_fresh = |since: Instant| now.saturating_duration_since(since) < stall;
        self.greetings.retain(|it| is_fresh(it.began()));
        self.sessions
            .retain(|it| it.is_idle() || is_fresh(it.moved()));
    }
}
