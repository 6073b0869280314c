/* What is relied on of the C interface of Mooncake's store, held against a real pool: loaded at run
 * time, as the library itself does it. It does not include Mooncake's header, since what is relied
 * on must hold for every build that is loaded. `scripts/pool check` runs it.
 *
 *   abi LIBRARY MASTER write NAME    stores two keys and reads them in the same process
 *   abi LIBRARY MASTER read NAME     reads them in another
 *   abi LIBRARY MASTER remove NAME   removes them
 *   abi LIBRARY MASTER effects NAME  what loading and a client's life do to the process, with the
 *                                    cures, and without them (NAME is "bare")
 *   abi LIBRARY MASTER lose NAME     ends by a SIGTERM of the host's in spite of the cures */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define KEYS 2
#define SIZE ((size_t)64 << 10)

static void expect(bool holds, const char *what, int line) {
  if (holds) return;
  fprintf(stderr, "line %d: not so: %s\n", line, what);
  exit(1);
}
#define EXPECT(condition) expect((condition), #condition, __LINE__)

/* ---- the functions ---- */

/* The configuration of a put has other fields in other builds; all of them take NULL and a block of
 * zeros, as long as the longest, that begins with the number of replicas. */
typedef struct {
  size_t replicas;
  char zeros[56];
} put_config;

static struct {
  void *(*create)(void);
  int (*setup)(void *, const char *host, const char *metadata, uint64_t segment, uint64_t buffer,
               const char *protocol, const char *device, const char *master);
  int (*batch_put_from)(void *, const char **keys, void **from, const size_t *sizes, size_t count,
                        const void *config, int *results);
  int (*batch_get_into)(void *, const char **keys, void **into, const size_t *sizes, size_t count,
                        int64_t *results);
  int (*batch_is_exist)(void *, const char **keys, size_t count, int *results);
  int (*register_buffer)(void *, void *from, size_t size);
  int (*unregister_buffer)(void *, void *from);
  int (*remove)(void *, const char *key, int force);
  int (*health_check)(void *);
  void (*destroy)(void *);
} api;

static void *load(const char *path) {
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    exit(1);
  }
#define FIND(name)                                               \
  *(void **)&api.name = dlsym(library, "mooncake_store_" #name); \
  EXPECT(api.name != NULL)
  FIND(create);
  FIND(setup);
  FIND(batch_put_from);
  FIND(batch_get_into);
  FIND(batch_is_exist);
  FIND(register_buffer);
  FIND(unregister_buffer);
  FIND(remove);
  FIND(health_check);
  FIND(destroy);
  return library;
}

/* ---- times ---- */

static double began;
static void start(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  began = (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}
static void report(const char *what) {
  double before = began;
  start();
  printf("%-34s %9.3f ms\n", what, began - before);
  start();
}

/* ---- a client and its memory ---- */

static unsigned char *memory;
static void *client;
static char names[KEYS][64];
static const char *keys[KEYS];
static void *places[KEYS];
static const size_t sizes[KEYS] = {SIZE, SIZE};

static unsigned char content(size_t key, size_t i) {
  return (unsigned char)(i * 31 + key * 7 + (i >> 12));
}

static void fill(void) {
  for (size_t key = 0; key < KEYS; ++key)
    for (size_t i = 0; i < SIZE; ++i) memory[key * SIZE + i] = content(key, i);
}
static bool is_filled(void) {
  for (size_t key = 0; key < KEYS; ++key)
    for (size_t i = 0; i < SIZE; ++i)
      if (memory[key * SIZE + i] != content(key, i)) return false;
  return true;
}

static void join(const char *master) {
  EXPECT(api.setup(client, "127.0.0.1", "P2PHANDSHAKE", 0, 0, "tcp", "", master) == 0);
  report("setup");
  EXPECT(api.health_check(client) == 0);
  EXPECT(api.register_buffer(client, memory, KEYS * SIZE) == 0);
  report("register_buffer");
}

static void leave(void) {
  start();
  EXPECT(api.unregister_buffer(client, memory) == 0);
  report("unregister_buffer");
  api.destroy(client);
  report("destroy");
}

static void expect_presence(int value) {
  int found[KEYS] = {-9, -9};
  start();
  EXPECT(api.batch_is_exist(client, keys, KEYS, found) == 0);
  report("batch_is_exist, 2 keys");
  for (size_t key = 0; key < KEYS; ++key) EXPECT(found[key] == value);
}

static void get(void) {
  int64_t landed[KEYS] = {-9, -9};
  memset(memory, 0, KEYS * SIZE);
  start();
  EXPECT(api.batch_get_into(client, keys, places, sizes, KEYS, landed) == 0);
  report("batch_get_into, 2 x 64 KiB");
  for (size_t key = 0; key < KEYS; ++key) EXPECT(landed[key] == (int64_t)SIZE);
  EXPECT(is_filled());
}

static void put(const void *config) {
  int stored[KEYS] = {-9, -9};
  start();
  EXPECT(api.batch_put_from(client, keys, places, sizes, KEYS, config, stored) == 0);
  report("batch_put_from, 2 x 64 KiB");
  for (size_t key = 0; key < KEYS; ++key) EXPECT(stored[key] == 0);
}

static void write_keys(void) {
  expect_presence(0);
  fill();
  const put_config one = {1, {0}};
  put(&one);
  expect_presence(1);
  get();
  /* Again with other bytes: what is there stays. */
  memset(memory, 0xee, KEYS * SIZE);
  put(NULL);
  get();
}

static void remove_keys(void) {
  /* A lookup leases what it finds; only force removes it then. */
  expect_presence(1);
  EXPECT(api.remove(client, keys[0], 0) != 0);
  for (size_t key = 0; key < KEYS; ++key) EXPECT(api.remove(client, keys[key], 1) == 0);
  expect_presence(0);
}

/* ---- what happens to the process ---- */

/* How many threads there are, or how many of them a SIGTERM for the process could interrupt. */
static int threads(bool interruptible) {
  int count = 0;
  DIR *tasks = opendir("/proc/self/task");
  EXPECT(tasks != NULL);
  for (struct dirent *entry; (entry = readdir(tasks)) != NULL;) {
    char path[300], line[128];
    snprintf(path, sizeof path, "/proc/self/task/%s/status", entry->d_name);
    FILE *status = entry->d_name[0] == '.' ? NULL : fopen(path, "r");
    if (status == NULL) continue;
    unsigned long long mask = 0;
    while (fgets(line, sizeof line, status) != NULL)
      if (strncmp(line, "SigBlk:", 7) == 0) mask = strtoull(line + 7, NULL, 16);
    fclose(status);
    count += !interruptible || (mask >> (SIGTERM - 1) & 1) == 0;
  }
  closedir(tasks);
  return count;
}

static struct sigaction handlers[NSIG];
static sigset_t blocked;

static bool is_same(const struct sigaction *a, const struct sigaction *b) {
  /* The C library adds a flag of its own (SA_RESTORER) where a signal is set for the first time. */
  const int restorer = 0x04000000;
  return a->sa_handler == b->sa_handler && ((a->sa_flags ^ b->sa_flags) & ~restorer) == 0;
}
static void remember(void) {
  for (int number = 1; number < NSIG; ++number) sigaction(number, NULL, &handlers[number]);
  pthread_sigmask(SIG_BLOCK, NULL, &blocked);
}
/* Prints what is other than remembered; answers how much that is. */
static int changes(const char *when) {
  int count = 0;
  printf("%s: %d threads, %d take SIGTERM;", when, threads(false), threads(true));
  for (int number = 1; number < NSIG; ++number) {
    struct sigaction now;
    if (sigaction(number, NULL, &now) == 0 && !is_same(&now, &handlers[number])) {
      const char *to = now.sa_handler == SIG_IGN ? "ignored" : "handled";
      printf(" %s %s%s", sigabbrev_np(number), to, now.sa_flags & SA_ONSTACK ? " on stack" : "");
      ++count;
    }
  }
  sigset_t mask;
  pthread_sigmask(SIG_BLOCK, NULL, &mask);
  for (int number = 1; number < NSIG; ++number)
    if (sigismember(&mask, number) != sigismember(&blocked, number)) {
      printf(" %s %s", sigabbrev_np(number), sigismember(&mask, number) ? "blocked" : "unblocked");
      ++count;
    }
  puts(count == 0 ? " signals as before" : "");
  return count;
}

/* The threads that these start have the mask of the one that calls. */
static void *create_apart(void *unused) {
  (void)unused;
  client = api.create();
  return NULL;
}
static void *join_apart(void *master) {
  join(master);
  fill();
  put(NULL);
  get();
  return NULL;
}
static void apart(void *(*run)(void *), void *argument) {
  pthread_t thread;
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  EXPECT(pthread_create(&thread, NULL, run, argument) == 0);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  EXPECT(pthread_join(thread, NULL) == 0);
}

static void effects(const char *path, char *master, bool cured) {
  remember();
  printf("before: %d threads\n", threads(false));
  sigset_t all;
  sigfillset(&all);
  start();
  if (cured) pthread_sigmask(SIG_BLOCK, &all, NULL);
  void *library = load(path);
  report("load");
  if (cured) {
    for (int number = 1; number < NSIG; ++number) {
      struct sigaction now;
      if (sigaction(number, NULL, &now) == 0 && !is_same(&now, &handlers[number]))
        sigaction(number, &handlers[number], NULL);
    }
    pthread_sigmask(SIG_SETMASK, &blocked, NULL);
  }
  int after_load = changes("after load");
  start();
  if (cured)
    apart(create_apart, NULL);
  else
    create_apart(NULL);
  report("create");
  int after_create = changes("after create");
  start();
  if (cured)
    apart(join_apart, master);
  else
    join_apart(master);
  int after_calls = changes("after setup and calls");
  int interruptible = threads(true);
  for (size_t key = 0; key < KEYS; ++key) EXPECT(api.remove(client, keys[key], 1) == 0);
  leave();
  int at_end = changes("after destroy");
  EXPECT(cured == (after_load + after_create + after_calls + at_end == 0));
  /* Ours, and theirs that waits for signals, see `lose`. */
  EXPECT(cured == (interruptible == 2));
  dlclose(library);
  changes("after dlclose");
}

/* A host that keeps SIGTERM for itself, with all cures: `create` starts a thread that waits for the
 * signal as well, and ends the process when it gets it. */
static void lose(const char *path) {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, NULL);
  load(path);
  apart(create_apart, NULL);
  kill(getpid(), SIGTERM);
  sleep(10);
}

int main(int count, char **arguments) {
  EXPECT(count == 5);
  const char *path = arguments[1], *role = arguments[3];
  char *master = arguments[2];
  setvbuf(stdout, NULL, _IOLBF, 0);
  memory = mmap(NULL, KEYS * SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  EXPECT(memory != MAP_FAILED);
  for (size_t key = 0; key < KEYS; ++key) {
    snprintf(names[key], sizeof names[key], "%s/%zu", arguments[4], key);
    keys[key] = names[key];
    places[key] = memory + key * SIZE;
  }
  if (strcmp(role, "lose") == 0) {
    lose(path);
    return 0;
  }
  if (strcmp(role, "effects") == 0) {
    effects(path, master, strcmp(arguments[4], "bare") != 0);
    return 0;
  }
  start();
  load(path);
  report("load");
  client = api.create();
  EXPECT(client != NULL);
  report("create");
  join(master);
  if (strcmp(role, "write") == 0) {
    write_keys();
  } else if (strcmp(role, "read") == 0) {
    expect_presence(1);
    get();
  } else {
    EXPECT(strcmp(role, "remove") == 0);
    remove_keys();
  }
  leave();
  return 0;
}
