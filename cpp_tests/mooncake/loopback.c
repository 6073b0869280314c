/* Preloaded into processes of a pool for tests: whoever listens on all interfaces listens on the
 * loopback one instead. Mooncake's clients cannot be told to (MC_TCP_BIND_ADDRESS sets what they
 * announce, not where they listen), and what they serve is anybody's to read and write. No part of
 * what is shipped. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

int bind(int socket, const struct sockaddr *address, socklen_t size) {
  int (*next)(int, const struct sockaddr *, socklen_t) = NULL;
  *(void **)&next = dlsym(RTLD_NEXT, "bind");
  if (address != NULL && address->sa_family == AF_INET && size >= sizeof(struct sockaddr_in)) {
    struct sockaddr_in other;
    memcpy(&other, address, sizeof other);
    if (other.sin_addr.s_addr == htonl(INADDR_ANY)) other.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return next(socket, (const struct sockaddr *)&other, sizeof other);
  }
  if (address != NULL && address->sa_family == AF_INET6 && size >= sizeof(struct sockaddr_in6)) {
    /* A socket for both families is reached over IPv4 here: ::ffff:127.0.0.1. */
    static const unsigned char both[16] = {[10] = 255, 255, 127, 0, 0, 1};
    struct sockaddr_in6 other;
    memcpy(&other, address, sizeof other);
    int only = 0;
    socklen_t length = sizeof only;
    getsockopt(socket, IPPROTO_IPV6, IPV6_V6ONLY, &only, &length);
    if (IN6_IS_ADDR_UNSPECIFIED(&other.sin6_addr))
      memcpy(&other.sin6_addr, only ? (const void *)&in6addr_loopback : both, 16);
    return next(socket, (const struct sockaddr *)&other, sizeof other);
  }
  return next(socket, address, size);
}
