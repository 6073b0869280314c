#include "notebook.h"

#include <kvbridge/kvbridge.hpp>

std::string keep(const std::string& note) {
  const auto config = kvb::Config::from_json(R"({"model_key": "m"})");
  const auto store = kvb::Store::open(config, kvb::engine(16));
  if (store.put({kvb::bytes("note")}, {kvb::piece(note.data(), note.size())})[0] != KVB_PUT_STORED)
    return "it was not stored";
  std::string back(note.size(), ' ');
  store.get_into({kvb::bytes("note")}, {kvb::piece(back.data(), back.size())});
  return back;
}

std::string refusal(const std::string& configuration) {
  try {
    kvb::Config::from_json(configuration);
    return "";
  } catch (const kvb::Error& error) {
    return error.what();
  }
}
