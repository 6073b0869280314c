//! Finding out which layouts a master has.
//!
//! Every master says that it is version 2.0.0, so that only its type codes tell: it takes a call only in its own
//! layout, and answers in it. What it refuses costs nothing; the connection stays as it is.

use std::time::Instant;

use super::family::Family;
use super::messages::{ALL_REPLICAS, Exist, Locate, PutEnd, PutRevoke, PutStart, ReplicateConfig};
use super::pack::{Flaw, Request, Text, Uuid, unpack};
use super::rpc::{Connection, Failure, Refusal, Requests, WRONG_LAYOUT};

/// Which layouts a master has: calls without keys, which it takes only in its own.
pub fn probe(
    connection: &mut Connection,
    guess: Family,
    deadline: Instant,
) -> Result<Family, Failure> {
    let others = Family::ALL.into_iter().filter(|&family| family != guess);
    let mut tried = Vec::new();
    for family in std::iter::once(guess).chain(others) {
        match has_family(connection, family, deadline)? {
            Ok(()) => return Ok(family),
            Err(why) => tried.push(format!("{}: {why}", family.versions())),
        }
    }
    Err(Failure::Nonsense(format!(
        "its messages are those of no version of Mooncake that is known here ({})",
        tried.join("; ")
    )))
}

/// Whether a master has these layouts; if not, why.
fn has_family(
    connection: &mut Connection,
    family: Family,
    deadline: Instant,
) -> Result<Result<(), String>, Failure> {
    let (client, tenant) = (Uuid(0, 0), Text::from("default"));
    let keys: &[Text<'_>] = &[];
    let start = PutStart {
        client,
        keys,
        sizes: &[],
        config: ReplicateConfig {
            replicas: 1,
            ..ReplicateConfig::default()
        },
        tenant,
    };
    let end = PutEnd {
        client,
        keys,
        written: &[],
        replicas: ALL_REPLICAS,
        tenant,
    };
    let revoke = PutRevoke {
        client,
        keys,
        replicas: ALL_REPLICAS,
        tenant,
    };
    let mut requests = Requests::default();
    requests.push(&start, family)?;
    requests.push(&end, family)?;
    requests.push(&revoke, family)?;
    requests.push(&Exist { keys, tenant }, family)?;
    requests.push(&Locate { keys, tenant }, family)?;
    let checks: [Check; 5] = [
        check::<PutStart<'_>>,
        check::<PutEnd<'_>>,
        check::<PutRevoke<'_>>,
        check::<Exist<'_>>,
        check::<Locate<'_>>,
    ];
    let mut wrong = None;
    connection.exchange(requests, deadline, |index, answer| {
        let Some(check) = checks.get(index) else {
            return Ok(());
        };
        if let Some(why) = check(family, answer)? {
            wrong.get_or_insert(why);
        }
        Ok(())
    })?;
    Ok(wrong.map_or(Ok(()), Err))
}

/// What is wrong with an answer, if its layout is another.
type Check = fn(Family, Result<&[u8], Refusal>) -> Result<Option<String>, Failure>;

fn check<R: Request>(
    family: Family,
    answer: Result<&[u8], Refusal>,
) -> Result<Option<String>, Failure> {
    match answer {
        Ok(body) => match unpack::<R::Reply<'_>>(body, family) {
            Ok(_) => Ok(None),
            Err(flaw @ Flaw::Type { .. }) => Ok(Some(format!("{} answers with {flaw}", R::METHOD))),
            Err(flaw) => Err(flaw.into()),
        },
        Err(refusal) if refusal.error == WRONG_LAYOUT => Ok(Some(format!(
            "{} does not take type code {:08x}",
            R::METHOD,
            R::code(family).unwrap_or_default()
        ))),
        Err(refusal) => Err(Failure::Refused(refusal)),
    }
}
