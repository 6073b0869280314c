/* A stand-in for Mooncake's library, not the real thing: the same functions over a table in this
 * process, which answer as the real ones were seen to (abi.c), and as a test tells them to. Tests
 * compile it (tests/mooncake_store.rs); each one's copy has a table and settings of its own.
 *
 * -DWITHOUT_TENANTS leaves out what older libraries lack. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what a test sets and asks ---- */

typedef struct {
  const char *name;
  int value;
} number;

static number numbers[] = {
    /* Set by a test. */
    {"setup_code", 0},    /* what setup answers */
    {"setup_waits", 0},   /* setup does not return while it is 1 */
    {"answer", 0},        /* not 0: what every key is answered */
    {"answer_from", 0},   /* from which key of a batch on */
    {"drops_puts", 0},    /* 1: puts are answered 0, as while another client writes the key */
    {"answer_exist", 0},  /* not 0: what every key of an existence question is answered */
    {"says_nothing", 0},  /* 1: answers are not written */
    {"call_code", 0},     /* what a batch call itself answers */
    {"size_answer", 0},   /* not 0: what get_size answers */
    {"health", 0},        /* what health_check answers */
    {"knows_tenants", 0}, /* 1: it has tenants, and no other than "acme" */
    {"register_code", 0},
    /* Counted. */
    {"clients", 0}, /* alive */
    {"setups", 0},  /* returned */
    {"calls", 0},   /* batches, and single calls of remove and get_size */
    {"largest", 0}, /* keys of the largest put or get */
    {"options", 0}, /* puts with options */
    {"crashes", 0}, /* what would crash the real one */
    {"visible", 0}, /* calls of create, setup and destroy that some signal could interrupt */
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static char arguments[1024];

static int *at(const char *name) {
  for (size_t i = 0; i < sizeof numbers / sizeof *numbers; ++i)
    if (strcmp(numbers[i].name, name) == 0) return &numbers[i].value;
  fprintf(stderr, "the stand-in has no %s\n", name);
  abort();
}

void stand_in_set(const char *name, int value) {
  pthread_mutex_lock(&lock);
  *at(name) = value;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
}

int stand_in_get(const char *name) {
  pthread_mutex_lock(&lock);
  int value = *at(name);
  pthread_mutex_unlock(&lock);
  return value;
}

/* Waits until the number has this value. */
void stand_in_await(const char *name, int value) {
  pthread_mutex_lock(&lock);
  while (*at(name) != value) pthread_cond_wait(&changed, &lock);
  pthread_mutex_unlock(&lock);
}

static void add(const char *name, int value) {
  pthread_mutex_lock(&lock);
  *at(name) += value;
  pthread_cond_broadcast(&changed);
  pthread_mutex_unlock(&lock);
}

/* What the last setup was called with. */
const char *stand_in_arguments(void) { return arguments; }

/* A setting as this library reads it. */
const char *stand_in_setting(const char *name) { return getenv(name); }

/* ---- the pool ---- */

typedef struct entry {
  struct entry *next;
  char *key, *bytes;
  size_t size;
  bool leased;
} entry;

typedef struct {
  bool is_set_up, is_stranger;
  int inside;
} client;

static entry *entries;
static pthread_mutex_t table = PTHREAD_MUTEX_INITIALIZER;

static entry **find(const char *key) {
  entry **place = &entries;
  while (*place != NULL && strcmp((*place)->key, key) != 0) place = &(*place)->next;
  return place;
}

static bool enter(client *self) {
  add("calls", 1);
  pthread_mutex_lock(&lock);
  bool can = self->is_set_up;
  self->inside += can;
  *at("crashes") += !can;
  pthread_mutex_unlock(&lock);
  return can;
}

static void leave(client *self) {
  pthread_mutex_lock(&lock);
  --self->inside;
  pthread_mutex_unlock(&lock);
}

static void note_mask(void) {
  sigset_t mask;
  pthread_sigmask(SIG_BLOCK, NULL, &mask);
  if (!sigismember(&mask, SIGTERM) || !sigismember(&mask, SIGUSR2)) add("visible", 1);
}

/* Whether a key comes again in its batch: then only its last place counts for bytes, though all are
 * answered alike. */
static bool comes_again(const char **keys, size_t index, size_t count) {
  for (size_t i = index + 1; i < count; ++i)
    if (strcmp(keys[i], keys[index]) == 0) return true;
  return false;
}

/* Whether a key of a batch is answered by the test's wish. */
static bool is_told(size_t index, long *answer) {
  int wish = stand_in_get("answer");
  if (wish == 0 || index < (size_t)stand_in_get("answer_from")) return false;
  *answer = wish;
  return true;
}

static void note_batch(size_t count) {
  pthread_mutex_lock(&lock);
  int *largest = at("largest");
  if ((int)count > *largest) *largest = (int)count;
  pthread_mutex_unlock(&lock);
}

/* ---- its functions ---- */

void *mooncake_store_create(void) {
  note_mask();
  add("clients", 1);
  return calloc(1, sizeof(client));
}

void mooncake_store_destroy(client *self) {
  note_mask();
  pthread_mutex_lock(&lock);
  *at("crashes") += self->inside != 0;
  pthread_mutex_unlock(&lock);
  free(self);
  add("clients", -1);
}

static int set_up(client *self, const char *own, const char *metadata, uint64_t segment,
                  uint64_t buffer, const char *protocol, const char *device, const char *master,
                  const char *tenant) {
  note_mask();
  pthread_mutex_lock(&lock);
  snprintf(arguments, sizeof arguments, "%s %s %llu %llu %s [%s] %s %s", own, metadata,
           (unsigned long long)segment, (unsigned long long)buffer, protocol, device, master,
           tenant);
  while (*at("setup_waits")) pthread_cond_wait(&changed, &lock);
  int code = *at("setup_code");
  self->is_set_up = code == 0;
  self->is_stranger = *at("knows_tenants") && strcmp(tenant, "acme") != 0;
  pthread_mutex_unlock(&lock);
  add("setups", 1);
  return code;
}

int mooncake_store_setup(client *self, const char *own, const char *metadata, uint64_t segment,
                         uint64_t buffer, const char *protocol, const char *device,
                         const char *master) {
  return set_up(self, own, metadata, segment, buffer, protocol, device, master, "-");
}

#ifndef WITHOUT_TENANTS
int mooncake_store_setup_with_tenant(client *self, const char *own, const char *metadata,
                                     uint64_t segment, uint64_t buffer, const char *protocol,
                                     const char *device, const char *master, const char *tenant) {
  return set_up(self, own, metadata, segment, buffer, protocol, device, master, tenant);
}
#endif

int mooncake_store_health_check(client *self) {
  if (!enter(self)) return -1;
  leave(self);
  return stand_in_get("health");
}

int mooncake_store_batch_put_from(client *self, const char **keys, void **from, const size_t *sizes,
                                  size_t count, const void *options, int *answers) {
  if (!enter(self)) return -1;
  note_batch(count);
  if (options != NULL) add("options", 1);
  pthread_mutex_lock(&table);
  for (size_t i = 0; i < count; ++i) {
    entry **place = find(keys[i]);
    long answer = 0;
    if (is_told(i, &answer)) {
    } else if (self->is_stranger) {
      answer = -1701;
    } else if (sizes[i] == 0 || keys[i][0] == 0) {
      answer = -600;
    } else if (*place == NULL && !comes_again(keys, i, count) && !stand_in_get("drops_puts")) {
      entry *made = calloc(1, sizeof *made);
      made->key = strdup(keys[i]);
      made->bytes = malloc(sizes[i]);
      memcpy(made->bytes, from[i], sizes[i]);
      made->size = sizes[i];
      *place = made;
    }
    if (!stand_in_get("says_nothing")) answers[i] = (int)answer;
  }
  pthread_mutex_unlock(&table);
  leave(self);
  return stand_in_get("call_code");
}

int mooncake_store_batch_get_into(client *self, const char **keys, void **into, const size_t *sizes,
                                  size_t count, int64_t *answers) {
  if (!enter(self)) return -1;
  note_batch(count);
  pthread_mutex_lock(&table);
  for (size_t i = 0; i < count; ++i) {
    entry *found = *find(keys[i]);
    long answer = 0;
    if (is_told(i, &answer)) {
    } else if (found == NULL) {
      answer = -704;
    } else if (found->size > sizes[i]) {
      answer = -600;
    } else {
      if (!comes_again(keys, i, count)) memcpy(into[i], found->bytes, found->size);
      found->leased = true;
      answer = (long)found->size;
    }
    if (!stand_in_get("says_nothing")) answers[i] = answer;
  }
  pthread_mutex_unlock(&table);
  leave(self);
  return stand_in_get("call_code");
}

int mooncake_store_batch_is_exist(client *self, const char **keys, size_t count, int *answers) {
  if (!enter(self)) return -1;
  pthread_mutex_lock(&table);
  for (size_t i = 0; i < count; ++i) {
    entry *found = *find(keys[i]);
    long answer = found != NULL;
    is_told(i, &answer);
    if (stand_in_get("answer_exist") != 0) answer = stand_in_get("answer_exist");
    if (found != NULL) found->leased = true;
    if (!stand_in_get("says_nothing")) answers[i] = (int)answer;
  }
  pthread_mutex_unlock(&table);
  leave(self);
  return stand_in_get("call_code");
}

int mooncake_store_remove(client *self, const char *key, int force) {
  if (!enter(self)) return -1;
  pthread_mutex_lock(&table);
  entry **place = find(key), *found = *place;
  long answer = 0;
  if (is_told(0, &answer)) {
  } else if (found == NULL) {
    answer = -704;
  } else if (found->leased && !force) {
    answer = -706;
  } else {
    *place = found->next;
    free(found->key);
    free(found->bytes);
    free(found);
  }
  pthread_mutex_unlock(&table);
  leave(self);
  return (int)answer;
}

int64_t mooncake_store_get_size(client *self, const char *key) {
  if (!enter(self)) return -1;
  pthread_mutex_lock(&table);
  entry *found = *find(key);
  int64_t size = found == NULL ? -704 : (int64_t)found->size;
  if (stand_in_get("size_answer") != 0) size = stand_in_get("size_answer");
  pthread_mutex_unlock(&table);
  leave(self);
  return size;
}

int mooncake_store_register_buffer(client *self, void *start, size_t size) {
  if (!enter(self)) return -1;
  leave(self);
  return start == NULL || size == 0 ? -1 : stand_in_get("register_code");
}

int mooncake_store_unregister_buffer(client *self, void *start) {
  if (!enter(self)) return -1;
  leave(self);
  return start == NULL ? -1 : stand_in_get("register_code");
}
