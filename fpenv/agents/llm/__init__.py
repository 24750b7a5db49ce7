"""A language model as the agent, over any endpoint that speaks the OpenAI protocol."""
