/* A C++ library on top of kvbridge, whose users do not see it. */
#ifndef CONSUMER_NOTEBOOK_H
#define CONSUMER_NOTEBOOK_H

#include <string>

/* Writes a note into a pool, answers what is read back. */
std::string keep(const std::string& note);

/* The text with which the library refuses a configuration. */
std::string refusal(const std::string& configuration);

#endif
